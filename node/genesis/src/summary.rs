//! The key summary: the holders of the subnet's key, the next holders, and how far the resharing
//! has come. A value that all nodes compute from the payloads of final blocks.
//!
//! 1. Each member deals its share once in an epoch, in a block that it leads ([`Summary::deal`]).
//!    Voters check it ([`Summary::check`]): a block with a false payload gets no votes.
//! 2. A final block's payload is applied, in the order of the chain ([`Summary::apply`]). The first
//!    dealings of as many dealers as sign together make the next transcript.
//! 3. After the last block of the epoch ([`Summary::close_epoch`]) the next committee takes over,
//!    if its transcript is complete. Otherwise the old one stays for another epoch.
//! 4. Each member opens its share ([`Summary::open_share`]), and moves its encryption key past it.
//!
//! A [`MembershipChange`] accepted in epoch `e` names the receivers of the dealings of `e + 1`; so
//! it is in effect from `e + 2` on, or from the epoch after the first completed resharing. One
//! change is accepted per epoch, so that the inputs of a payload's check are fixed for the whole
//! epoch: a summary that is some blocks behind differs from the newest only in what it does not yet
//! know to be surplus.
//!
//! Same start, same payloads of the same leaders in the same order: same bytes, on every node.
//! Randomness goes into new dealings and into the weights of verification, never into the resulting
//! value (a false dealing passes with a probability below 2^-63).
//!
//! Bounded by [`SUMMARY_BYTES_MAX`], and in memory about as much.

use std::{collections::BTreeMap, sync::Arc};

use ic_principal::Principal;
use nidkg::{
    Committee, Dealing, DealingError, DecodeError, EncryptionSecretKey, Engine, Epoch, NodeIndex,
    PublicKey, SecretShare, Session, SessionError, Source, Transcript, TranscriptError,
    VerifiedDealing, create_dealing, create_transcript, verify_dealing, verify_dealings,
};
use rand::{CryptoRng, RngCore};
use thiserror::Error;

use crate::{
    BytesError, ChangeError, GENESIS_EPOCH, GenesisError, MembershipChange, NODES_MAX, NodeRecord,
    PAYLOAD_BYTES_MAX, Payload, PayloadError, VerifiedGenesis,
    bytes::{Reader, write_part},
    hash::Message,
    membership::{check_members, read_records, write_records},
    threshold,
};

/// A summary larger than this is not read: 64 members with all but the last of their dealings take
/// a third of it.
pub const SUMMARY_BYTES_MAX: usize = 16 << 20;

/// Version of the encoding. A decoder knows this one only.
const SUMMARY_VERSION: u8 = 1;
/// Part of [`SUMMARY_BYTES_MAX`]; 43 ciphertexts for 64 receivers take half of it.
const TRANSCRIPT_BYTES_MAX: usize = 4 << 20;

const _: () = assert!(
    (NODES_MAX - NODES_MAX.div_ceil(3)) * PAYLOAD_BYTES_MAX + TRANSCRIPT_BYTES_MAX
        < SUMMARY_BYTES_MAX,
    "dealings of an incomplete transcript fit in, in addition to the transcript in use"
);

/// The key summary. Public data only.
#[derive(Clone)]
pub struct Summary {
    /// Epoch of agreement that this summary is of.
    epoch: u64,
    /// Changes of members accepted before this epoch.
    changes: u64,
    /// Of this epoch, by rising node key.
    members: Vec<NodeRecord>,
    key: Key,
    /// Receivers of this epoch's dealings.
    next_members: Vec<NodeRecord>,
    /// Receivers of the next epoch's dealings, when a change was accepted in this one.
    accepted: Option<Vec<NodeRecord>>,
    progress: Progress,
}

/// How the members of this epoch got the key.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "there is one per summary")]
enum Key {
    /// In a ceremony, or otherwise before the first epoch.
    Given(Committee),
    /// From an earlier committee.
    Reshared(Arc<Resharing>),
}

struct Resharing {
    /// Epoch of agreement that it was made for.
    target: u32,
    /// Key epoch of the dealers.
    source: u32,
    /// The committee whose members dealt.
    previous: Committee,
    transcript: Transcript,
}

/// How far the resharing has come in this epoch.
#[derive(Clone)]
enum Progress {
    /// Fewer than are needed, by dealer.
    Dealings(BTreeMap<u32, Dealt>),
    /// The next committee has its transcript.
    Done(Arc<Transcript>),
}

#[derive(Clone)]
enum Dealt {
    Verified(Arc<VerifiedDealing>),
    /// From stored bytes: verified before by the node that applied it, and again when it is used.
    Stored(Arc<Dealing>),
}

/// Why a payload, a share or stored bytes were refused.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum SummaryError {
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error("member {} is not one of the {members} of this epoch", member.0)]
    NoMember { member: NodeIndex, members: usize },
    #[error("the dealing is for epoch {stated}; dealings of this epoch are for epoch {right}")]
    OtherEpoch { stated: u64, right: u64 },
    #[error("the transcript of epoch {0} is made already: the dealing is surplus")]
    Surplus(u64),
    #[error("member {} has dealt in this epoch before", .0.0)]
    DealtTwice(NodeIndex),
    #[error(transparent)]
    Dealing(#[from] DealingError),
    #[error("the share of member {} is not that of key epoch {}", member.0, key_epoch.0)]
    OtherShare { member: NodeIndex, key_epoch: Epoch },
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// Epochs are counted with 32 bits in encryption keys.
    #[error("epoch {0} has no successor that an encryption key could be moved to")]
    LastEpoch(u64),
    #[error("the handing on: {0}")]
    Session(#[from] SessionError),
    /// The shares of a genesis are not in the summary.
    #[error(
        "the shares in use are those of the genesis: they are opened out of it when a node joins, \
         not out of the summary"
    )]
    GenesisShare,
    #[error("the transcript: {0}")]
    Transcript(#[from] TranscriptError),
    #[error(
        "{members} members with a committee of {shares}, of which {threshold} sign together: they \
         do not belong together"
    )]
    Committee { members: usize, shares: usize, threshold: u32 },
    #[error("the committee: {0}")]
    Key(#[from] nidkg::BlsError),
    #[error("the summary: {0}")]
    Bytes(#[from] BytesError),
    #[error("the summary: {0}")]
    Decode(#[from] DecodeError),
    #[error("the summary: {0}")]
    Record(#[from] GenesisError),
    #[error("the summary: {0} does not belong to the rest of it")]
    Mixed(&'static str),
}

impl Summary {
    /// Of the first epoch of a subnet that came out of a ceremony.
    pub fn genesis(verified: &VerifiedGenesis) -> Self {
        Self::first(verified.plan().nodes().to_vec(), verified.committee().clone())
    }

    /// Of the first epoch of a subnet whose key was dealt otherwise. Members are ordered by rising
    /// node key, shares in the same order.
    pub fn from_parts(
        members: Vec<NodeRecord>,
        committee: Committee,
    ) -> Result<Self, SummaryError> {
        check_members(&members)?;
        check_committee(&members, &committee)?;
        committee.coefficients()?;
        Ok(Self::first(members, committee))
    }

    fn first(members: Vec<NodeRecord>, committee: Committee) -> Self {
        Self {
            epoch: 0,
            changes: 0,
            next_members: members.clone(),
            members,
            key: Key::Given(committee),
            accepted: None,
            progress: Progress::Dealings(BTreeMap::new()),
        }
    }

    /// Epoch of agreement.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many changes of members were accepted before this epoch: the number that the next one
    /// must have.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Members of this epoch, by rising node key: a member's place is its index.
    pub fn members(&self) -> &[NodeRecord] {
        &self.members
    }

    /// Public keys and threshold of this epoch.
    pub fn committee(&self) -> &Committee {
        match &self.key {
            Key::Given(committee) => committee,
            Key::Reshared(resharing) => resharing.transcript.committee(),
        }
    }

    /// The subnet's public key, in every epoch.
    pub fn public_key(&self) -> &PublicKey {
        &self.committee().public_key
    }

    /// The subnet is known by the hash of its key.
    pub fn subnet_id(&self) -> Principal {
        Principal::self_authenticating(nidkg::public_key_to_der(self.public_key()))
    }

    /// The epoch that the shares in use were encrypted to: that of the ceremony, or the epoch of
    /// agreement they were made for.
    pub fn key_epoch(&self) -> Epoch {
        match &self.key {
            Key::Given(_) => GENESIS_EPOCH,
            Key::Reshared(resharing) => Epoch(resharing.target),
        }
    }

    /// That of the shares before, with which these were dealt. None as long as the shares are those
    /// of the start.
    pub fn previous_key_epoch(&self) -> Option<Epoch> {
        match &self.key {
            Key::Given(_) => None,
            Key::Reshared(resharing) => Some(Epoch(resharing.source)),
        }
    }

    /// The next holders of the key: the receivers of this epoch's dealings.
    pub fn next_members(&self) -> &[NodeRecord] {
        &self.next_members
    }

    /// The receivers of the next epoch, when a change of members was accepted in this one.
    pub fn accepted_members(&self) -> Option<&[NodeRecord]> {
        self.accepted.as_deref()
    }

    /// Place of the member with this node key.
    pub fn place_of(&self, node_key: &[u8; 32]) -> Option<NodeIndex> {
        let place = self
            .members
            .binary_search_by_key(node_key, |member| member.node_key().to_bytes())
            .ok()?;
        Some(NodeIndex(place as u32))
    }

    /// Whether this member's dealing is missing and still wanted.
    pub fn wants_dealing(&self, dealer: NodeIndex) -> bool {
        self.wanted(dealer).is_ok() && self.target().is_ok()
    }

    /// How many dealings are missing for the next transcript; 0 once it is there.
    pub fn dealings_missing(&self) -> usize {
        match &self.progress {
            Progress::Dealings(dealings) => self.committee().threshold as usize - dealings.len(),
            Progress::Done(_) => 0,
        }
    }

    /// A payload in which `dealer` reshares its share.
    pub fn deal(
        &self,
        engine: &Engine,
        dealer: NodeIndex,
        share: &SecretShare,
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<Vec<u8>, SummaryError> {
        self.wanted(dealer)?;
        if share.index != dealer || self.committee().shares[dealer.0 as usize] != share.public_key()
        {
            return Err(SummaryError::OtherShare { member: dealer, key_epoch: self.key_epoch() });
        }
        let dealing = create_dealing(engine, &self.session()?, dealer, Some(share), rng)?;
        let target = self.target()?.into();
        Ok(Payload::Dealing { target, dealing: Box::new(dealing) }.to_bytes())
    }

    /// A payload with this change of members. [`Self::check`] decides whether it would pass.
    pub fn change(change: &MembershipChange) -> Vec<u8> {
        Payload::Change(Box::new(change.clone())).to_bytes()
    }

    /// Everything a voter checks of the payload in a block of `leader`. `rng` must be unpredictable
    /// to others. The result spares [`Self::apply_checked`] the same work.
    pub fn check(
        &self,
        engine: &Engine,
        leader: NodeIndex,
        payload: &[u8],
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<CheckedPayload, SummaryError> {
        let effect = self.evaluate_payload(engine, leader, payload, rng)?;
        Ok(CheckedPayload { epoch: self.epoch, leader, effect })
    }

    /// The same as [`Self::apply`] of a payload that this node checked. A payload checked in
    /// another epoch is checked again: a block that was voted on need not become final, and a
    /// change that it carried may come again.
    pub fn apply_checked(
        &mut self,
        engine: &Engine,
        payload: &[u8],
        checked: &CheckedPayload,
        rng: &mut (impl RngCore + CryptoRng),
    ) -> bool {
        if self.epoch != checked.epoch {
            return self.apply(engine, checked.leader, payload, rng);
        }
        let wanted = match &checked.effect {
            PayloadEffect::Members(_) => self.accepted.is_none(),
            PayloadEffect::Dealing(_) => self.wants_dealing(checked.leader),
        };
        if !wanted {
            return false;
        }
        self.apply_effect(engine, checked.leader, checked.effect.clone(), rng);
        true
    }

    /// Takes in the payload of a final block of `leader`; blocks come in the order of the chain.
    /// Whether anything changed: surplus, repeated or invalid payloads change nothing.
    pub fn apply(
        &mut self,
        engine: &Engine,
        leader: NodeIndex,
        payload: &[u8],
        rng: &mut (impl RngCore + CryptoRng),
    ) -> bool {
        let Ok(effect) = self.evaluate_payload(engine, leader, payload, rng) else { return false };
        self.apply_effect(engine, leader, effect, rng);
        true
    }

    fn apply_effect(
        &mut self,
        engine: &Engine,
        leader: NodeIndex,
        effect: PayloadEffect,
        rng: &mut (impl RngCore + CryptoRng),
    ) {
        match effect {
            PayloadEffect::Members(members) => self.accepted = Some(members),
            PayloadEffect::Dealing(dealing) => {
                if let Progress::Dealings(dealings) = &mut self.progress {
                    dealings.insert(leader.0, Dealt::Verified(dealing));
                }
                if self.dealings_missing() == 0 {
                    self.conclude(engine, rng);
                }
            }
        }
    }

    /// After the last block of the epoch, its payload applied: the next epoch begins.
    pub fn close_epoch(&mut self) {
        let none = Progress::Dealings(BTreeMap::new());
        if let (Progress::Done(transcript), Ok(target)) =
            (std::mem::replace(&mut self.progress, none), self.target())
        {
            let transcript = Arc::unwrap_or_clone(transcript);
            let (source, previous) = (self.key_epoch().0, self.committee().clone());
            self.key = Key::Reshared(Arc::new(Resharing { target, source, previous, transcript }));
            self.members = self.next_members.clone();
        }
        if let Some(accepted) = self.accepted.take() {
            self.next_members = accepted;
            self.changes = self.changes.saturating_add(1);
        }
        self.epoch = self.epoch.saturating_add(1);
    }

    /// Opens the share of member `me` with its encryption key, and checks it. Shares of a genesis
    /// are not here: see [`VerifiedGenesis::open_share`].
    pub fn open_share(
        &self,
        engine: &Engine,
        me: NodeIndex,
        key: &EncryptionSecretKey,
    ) -> Result<SecretShare, SummaryError> {
        let Key::Reshared(resharing) = &self.key else { return Err(SummaryError::GenesisShare) };
        let session = session(&resharing.previous, resharing.target, &self.members)?;
        Ok(resharing.transcript.load(engine, &session, me, key)?)
    }

    /// The members that this change would make, regardless of its signatures.
    pub fn members_after(&self, change: &MembershipChange) -> Result<Vec<NodeRecord>, ChangeError> {
        if self.accepted.is_some() {
            return Err(ChangeError::UnderWay);
        }
        change.applied(self.public_key(), self.changes, &self.members, &self.next_members)
    }

    /// How many members of this epoch signed this change, and how many must. An invalid signature,
    /// or one of a node that is not a member, is an error.
    pub fn signatures_of(&self, change: &MembershipChange) -> Result<(usize, u32), ChangeError> {
        Ok((change.signed_by(&self.members)?, self.committee().threshold))
    }

    fn evaluate_payload(
        &self,
        engine: &Engine,
        leader: NodeIndex,
        payload: &[u8],
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<PayloadEffect, SummaryError> {
        self.is_member(leader)?;
        match Payload::from_bytes(payload)? {
            Payload::Dealing { target, dealing } => {
                let right = self.target()?.into();
                if target != right {
                    return Err(SummaryError::OtherEpoch { stated: target, right });
                }
                self.wanted(leader)?;
                let dealing = verify_dealing(engine, &self.session()?, leader, *dealing, rng)?;
                Ok(PayloadEffect::Dealing(Arc::new(dealing)))
            }
            Payload::Change(change) => {
                let members = self.members_after(&change)?;
                let (have, need) = self.signatures_of(&change)?;
                if have < need as usize {
                    return Err(ChangeError::Unsigned { have, need }.into());
                }
                Ok(PayloadEffect::Members(members))
            }
        }
    }

    fn is_member(&self, member: NodeIndex) -> Result<(), SummaryError> {
        let members = self.members.len();
        if member.0 as usize >= members {
            return Err(SummaryError::NoMember { member, members });
        }
        Ok(())
    }

    /// Whether a dealing of this member is still to come.
    fn wanted(&self, dealer: NodeIndex) -> Result<(), SummaryError> {
        self.is_member(dealer)?;
        match &self.progress {
            Progress::Done(_) => Err(SummaryError::Surplus(self.epoch.saturating_add(1))),
            Progress::Dealings(dealings) if dealings.contains_key(&dealer.0) => {
                Err(SummaryError::DealtTwice(dealer))
            }
            Progress::Dealings(_) => Ok(()),
        }
    }

    /// Makes the next transcript of the dealings there are.
    fn conclude(&mut self, engine: &Engine, rng: &mut (impl RngCore + CryptoRng)) {
        let none = Progress::Dealings(BTreeMap::new());
        let Progress::Dealings(dealings) = std::mem::replace(&mut self.progress, none) else {
            return;
        };
        let Ok(session) = self.session() else { return };
        let (mut verified, mut stored) = (vec![], vec![]);
        for (dealer, dealt) in dealings {
            match dealt {
                Dealt::Verified(dealing) => verified.push(Arc::unwrap_or_clone(dealing)),
                Dealt::Stored(dealing) => {
                    stored.push((NodeIndex(dealer), Arc::unwrap_or_clone(dealing)))
                }
            }
        }
        // Stored dealings were verified when they were taken in; one that is false now was never
        // taken in by anybody, and its place is open again.
        verified.extend(verify_dealings(engine, &session, stored, rng).into_iter().flatten());
        self.progress = match create_transcript(engine, &session, &verified) {
            Ok(transcript) => Progress::Done(Arc::new(transcript)),
            // The committee in use fits together, or it could not have signed: dealings that
            // verified always give its key.
            Err(_) => Progress::Dealings(
                verified
                    .into_iter()
                    .take(self.committee().threshold as usize - 1)
                    .map(|dealing| (dealing.dealer().0, Dealt::Verified(Arc::new(dealing))))
                    .collect(),
            ),
        };
    }

    /// The epoch that this epoch's dealings are for.
    fn target(&self) -> Result<u32, SummaryError> {
        let next = self.epoch.checked_add(1).and_then(|next| u32::try_from(next).ok());
        // One more must be left for the encryption key to move to.
        next.filter(|next| *next < u32::MAX).ok_or(SummaryError::LastEpoch(self.epoch))
    }

    fn session(&self) -> Result<Session, SummaryError> {
        session(self.committee(), self.target()?, &self.next_members)
    }

    /// The canonical encoding, the same on every node; [`Self::from_bytes`] reads it.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = vec![SUMMARY_VERSION];
        writer.extend(u64::to_be_bytes(self.epoch));
        writer.extend(u64::to_be_bytes(self.changes));
        write_records(&mut writer, &self.members);
        match &self.key {
            Key::Given(committee) => {
                writer.push(0);
                write_committee(&mut writer, committee);
            }
            Key::Reshared(resharing) => {
                writer.push(1);
                writer.extend(u32::to_be_bytes(resharing.target));
                writer.extend(u32::to_be_bytes(resharing.source));
                write_committee(&mut writer, &resharing.previous);
                write_part(&mut writer, &resharing.transcript.to_bytes());
            }
        }
        // Equal records are stored once: each costs arithmetic to read.
        if self.next_members == self.members {
            writer.push(0);
        } else {
            writer.push(1);
            write_records(&mut writer, &self.next_members);
        }
        match &self.accepted {
            None => writer.push(0),
            Some(accepted) if *accepted == self.members => writer.push(1),
            Some(accepted) => {
                writer.push(2);
                write_records(&mut writer, accepted);
            }
        }
        match &self.progress {
            Progress::Dealings(dealings) => {
                writer.push(0);
                writer.extend(u32::to_be_bytes(dealings.len() as u32));
                for (dealer, dealt) in dealings {
                    writer.extend(u32::to_be_bytes(*dealer));
                    let dealing = match dealt {
                        Dealt::Verified(dealing) => dealing.dealing().to_bytes(),
                        Dealt::Stored(dealing) => dealing.to_bytes(),
                    };
                    write_part(&mut writer, &dealing);
                }
            }
            Progress::Done(transcript) => {
                writer.push(1);
                write_part(&mut writer, &transcript.to_bytes());
            }
        }
        writer
    }

    /// Reads the output of [`Self::to_bytes`]. Every record and key is checked, and that the parts
    /// belong together; the caller must ensure that it is this subnet's and the newest.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SummaryError> {
        let mut reader = Reader::new(bytes, SUMMARY_BYTES_MAX)?;
        reader.tag("the version", SUMMARY_VERSION..=SUMMARY_VERSION)?;
        let epoch = reader.u64("the epoch")?;
        let changes = reader.u64("the number of changes")?;
        let members = read_records(&mut reader, "the number of members")?;
        check_members(&members)?;
        let key = match reader.tag("the origin of the key", 0..=1)? {
            0 => Key::Given(read_committee(&mut reader)?),
            _ => Key::Reshared(Arc::new(Resharing::read(&mut reader, epoch, &members)?)),
        };
        let next_members = match reader.tag("the next members", 0..=1)? {
            0 => members.clone(),
            _ => read_other_members(&mut reader, &members)?,
        };
        let accepted = match reader.tag("the accepted members", 0..=2)? {
            0 => None,
            1 => Some(members.clone()),
            _ => Some(read_other_members(&mut reader, &members)?),
        };
        let none = Progress::Dealings(BTreeMap::new());
        let mut summary =
            Self { epoch, changes, members, key, next_members, accepted, progress: none };
        check_committee(&summary.members, summary.committee())?;
        if summary.accepted.as_ref() == Some(&summary.next_members) {
            return Err(SummaryError::Mixed("the change of members"));
        }
        summary.progress = Progress::read(&mut reader, &summary)?;
        reader.finish()?;
        Ok(summary)
    }
}

/// A payload that was found good, of a block of one leader in one epoch.
#[derive(Clone)]
pub struct CheckedPayload {
    epoch: u64,
    leader: NodeIndex,
    effect: PayloadEffect,
}

#[derive(Clone)]
enum PayloadEffect {
    Dealing(Arc<VerifiedDealing>),
    Members(Vec<NodeRecord>),
}

impl Resharing {
    fn read(
        reader: &mut Reader<'_>,
        epoch: u64,
        members: &[NodeRecord],
    ) -> Result<Self, SummaryError> {
        // Nothing is reshared before the first epoch is over, nor ahead of time.
        let max = u32::try_from(epoch).unwrap_or(u32::MAX).min(u32::MAX - 1);
        let target = reader.u32_within("the epoch of the key", 1, max)?;
        let source = reader.u32_within("the epoch of the key before", 0, target - 1)?;
        let previous = read_committee(reader)?;
        let transcript =
            Transcript::from_bytes_here(reader.part("the transcript", TRANSCRIPT_BYTES_MAX)?)?;
        fits(&transcript, &previous, target, members)?;
        Ok(Self { target, source, previous, transcript })
    }
}

impl Progress {
    fn read(reader: &mut Reader<'_>, summary: &Summary) -> Result<Self, SummaryError> {
        let need = summary.committee().threshold;
        if reader.tag("the progress", 0..=1)? == 1 {
            let what = "the next transcript";
            let transcript = Transcript::from_bytes_here(reader.part(what, TRANSCRIPT_BYTES_MAX)?)?;
            fits(&transcript, summary.committee(), summary.target()?, &summary.next_members)?;
            return Ok(Self::Done(Arc::new(transcript)));
        }
        let count = reader.count("the number of dealings", need as usize - 1)?;
        let last = summary.members.len() as u32 - 1;
        let (mut dealings, mut lowest) = (BTreeMap::new(), 0);
        for _ in 0..count {
            let dealer = reader.u32_within("the index of a dealer", lowest, last)?;
            lowest = dealer + 1;
            let dealing = Dealing::from_bytes(reader.part("a dealing", PAYLOAD_BYTES_MAX)?)?;
            dealings.insert(dealer, Dealt::Stored(Arc::new(dealing)));
        }
        Ok(Self::Dealings(dealings))
    }
}

/// The resharing of the key of `previous` to `receivers`, which hold it from epoch `target` on.
fn session(
    previous: &Committee,
    target: u32,
    receivers: &[NodeRecord],
) -> Result<Session, SummaryError> {
    let id = Message::new("thimble-resharing")
        .part(previous.public_key.as_bytes())
        .number(target.into())
        .digest();
    let keys = receivers.iter().map(|receiver| *receiver.encryption_key()).collect();
    let source = Source::Reshare(previous.clone());
    Ok(Session::new(id, Epoch(target), threshold(receivers.len()), keys, source)?)
}

/// Whether a transcript is that of this resharing.
fn fits(
    transcript: &Transcript,
    previous: &Committee,
    target: u32,
    receivers: &[NodeRecord],
) -> Result<(), SummaryError> {
    let is_one = transcript.matches_session(&session(previous, target, receivers)?)
        && transcript.committee().public_key == previous.public_key
        && transcript.dealers().count() == previous.threshold as usize
        && transcript.dealers().all(|dealer| (dealer.0 as usize) < previous.shares.len());
    if is_one { Ok(()) } else { Err(SummaryError::Mixed("a transcript")) }
}

fn check_committee(members: &[NodeRecord], committee: &Committee) -> Result<(), SummaryError> {
    let (members, shares) = (members.len(), committee.shares.len());
    if shares != members || committee.threshold != threshold(members) {
        return Err(SummaryError::Committee { members, shares, threshold: committee.threshold });
    }
    Ok(())
}

fn write_committee(writer: &mut Vec<u8>, committee: &Committee) {
    writer.extend(u32::to_be_bytes(committee.shares.len() as u32));
    writer.extend(u32::to_be_bytes(committee.threshold));
    writer.extend_from_slice(committee.public_key.as_bytes());
    committee.shares.iter().for_each(|share| writer.extend_from_slice(share.as_bytes()));
}

fn read_committee(reader: &mut Reader<'_>) -> Result<Committee, SummaryError> {
    let count = reader.u32_within("the size of a committee", 1, NODES_MAX as u32)?;
    let threshold = reader.u32_within("the threshold", 1, count)?;
    let mut key = || -> Result<PublicKey, SummaryError> {
        Ok(PublicKey::from_bytes(&reader.array("a public key")?)?)
    };
    let public_key = key()?;
    let shares = (0..count).map(|_| key()).collect::<Result<_, _>>()?;
    Ok(Committee { public_key, threshold, shares })
}

/// Members that are not those of this epoch.
fn read_other_members(
    reader: &mut Reader<'_>,
    members: &[NodeRecord],
) -> Result<Vec<NodeRecord>, SummaryError> {
    let what = "the members of another epoch";
    let others = read_records(reader, what)?;
    check_members(&others)?;
    if others == members {
        return Err(BytesError::NotCanonical { what }.into());
    }
    Ok(others)
}
