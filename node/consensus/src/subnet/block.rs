//! A block: a short header, the names of calls, and occasionally certifications of earlier states
//! and a payload for the subnet's key.
//!
//! A call is named by the digest and the length of one envelope, so that every node judges, counts
//! and executes the same bytes, whatever other envelope of the same request it received. Calls
//! themselves are sent separately (see [`super::calls`]), so each crosses a wire once and is in
//! memory once, however often the block that names it is proposed, voted on and stored.

use std::collections::BTreeSet;

use bytes::{BufMut, Bytes};
use commonware_codec::{
    Buf, EncodeSize, Error, FixedSize, RangeCfg, Read, ReadExt, ReadRangeExt, Write, varint::UInt,
};
use commonware_consensus::{
    BoundedBlock, Heightable,
    simplex::types::Finalization,
    types::{Height, Round},
};
use commonware_cryptography::{Digestible, Hasher, Sha256, sha256};
use nidkg::{Signature, state_root_message};
use serde::{Deserialize, Serialize};
use state::{AWAITED_MAX, INGRESS_OVERHEAD_BYTES, IngressId, Randomness, SignedRandomness, Time};

use super::{key::Scheme, queries::BlockQueryReport};

/// Names a block.
pub(super) type Digest = sha256::Digest;
/// That a block is final.
pub(super) type BlockFinalization = Finalization<Scheme, Digest>;

/// Bytes of an encoded round at most: epoch and view as varints.
const ROUND_BYTES_MAX: usize = 10 + 10;
/// Certifications that a block carries at most.
const CERTIFICATIONS_MAX: usize = AWAITED_MAX;
/// Begins what is hashed into the randomness of a signature; begins with its length.
const RANDOMNESS_DOMAIN: &[u8] = b"\x12thimble-randomness";

/// The subnet's signature on the state after an earlier block. Execution answers calls of that
/// round with randomness from it, so members carry it when calls wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certification {
    /// Root of the state.
    pub(super) root: [u8; 32],
    pub(super) signature: Signature,
}

impl Certification {
    const BYTES: usize = 32 + 48;

    /// For execution. The signature is unique, and so is its encoding.
    fn randomness(&self) -> SignedRandomness {
        let value = Sha256::hash(&[RANDOMNESS_DOMAIN, &self.signature.0]).0;
        SignedRandomness { root: self.root, value }
    }
}

impl Write for Certification {
    fn write(&self, out: &mut impl BufMut) {
        self.root.write(out);
        self.signature.0.write(out);
    }
}

impl EncodeSize for Certification {
    fn encode_size(&self) -> usize {
        Self::BYTES
    }
}

impl Read for Certification {
    type Cfg = ();

    fn read_cfg(buf: &mut impl Buf, (): &()) -> Result<Self, Error> {
        let root = <[u8; 32]>::read(buf)?;
        Ok(Self { root, signature: Signature(<[u8; 48]>::read(buf)?) })
    }
}

/// A call as a block names it: by its id, and by the one envelope that is meant. A client may have
/// sent several envelopes of one id; what a block is judged by, executed from and stored as is the
/// one it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct CallName {
    /// Of the request, and of the canister in the URL.
    pub(crate) id: IngressId,
    /// SHA-256 of the envelope ([`state::SignedIngress::digest`]).
    pub(crate) digest: [u8; 32],
    pub(crate) bytes: u32,
}

impl CallName {
    /// Bytes of an encoded name at most: the length is a varint.
    const BYTES_MAX: usize = 32 + 32 + 5;

    /// Names this envelope.
    #[cfg(test)]
    pub(crate) fn for_envelope(id: IngressId, signed: &state::SignedIngress) -> Self {
        Self { id, digest: signed.digest(), bytes: signed.envelope.len() as u32 }
    }

    /// [`state::SignedIngress::accounted_bytes`] of the named envelope.
    pub(crate) fn accounted_bytes(&self) -> u64 {
        u64::from(self.bytes) + INGRESS_OVERHEAD_BYTES
    }
}

impl Write for CallName {
    fn write(&self, out: &mut impl BufMut) {
        self.id.0.write(out);
        self.digest.write(out);
        UInt(self.bytes).write(out);
    }
}

impl EncodeSize for CallName {
    fn encode_size(&self) -> usize {
        32 + 32 + UInt(self.bytes).encode_size()
    }
}

impl Read for CallName {
    type Cfg = ();

    fn read_cfg(buf: &mut impl Buf, (): &()) -> Result<Self, Error> {
        Ok(Self {
            id: IngressId(<[u8; 32]>::read(buf)?),
            digest: <[u8; 32]>::read(buf)?,
            bytes: UInt::<u32>::read(buf)?.into(),
        })
    }
}

/// Why a block gets no vote.
#[derive(Debug)]
pub(super) enum VerdictError {
    /// No honest node votes for it.
    Invalid(String),
    /// This node cannot decide at the moment.
    Unavailable(String),
}

/// Bounds for decoding a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockBounds {
    /// Most calls that it may name.
    pub(super) ingress: usize,
    /// Bytes of what it carries for the subnet's key.
    pub(super) payload: usize,
}

/// A block's payload for the subnet's key: a dealing, or a change of the members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyPayload {
    /// Place of the block's maker.
    pub(super) leader: u32,
    pub(super) bytes: Bytes,
}

impl Write for KeyPayload {
    fn write(&self, out: &mut impl BufMut) {
        self.leader.write(out);
        self.bytes.write(out);
    }
}

impl EncodeSize for KeyPayload {
    fn encode_size(&self) -> usize {
        u32::SIZE + self.bytes.encode_size()
    }
}

impl Read for KeyPayload {
    type Cfg = usize;

    fn read_cfg(buf: &mut impl Buf, bytes_max: &usize) -> Result<Self, Error> {
        let leader = u32::read(buf)?;
        let bytes = Vec::<u8>::read_range(buf, RangeCfg::from(0..=*bytes_max))?;
        // A copy: it is kept longer than the message it came in.
        Ok(Self { leader, bytes: bytes.into() })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) parent: Digest,
    pub(super) height: Height,
    pub(super) time: Time,
    /// The round that the block was made in.
    pub(super) round: Round,
    /// In most blocks none, [`CERTIFICATIONS_MAX`] at most.
    pub(super) certifications: Vec<Certification>,
    pub(super) ingress: Vec<CallName>,
    /// In most blocks none.
    pub(super) payload: Option<KeyPayload>,
    /// Query counts of the block's maker; none in most blocks.
    pub(super) queries: Option<BlockQueryReport>,
}

impl Block {
    /// The block before the first. It commits to who the subnet is.
    pub(super) fn genesis(subnet: &[u8], time: Time) -> Self {
        Self {
            parent: Sha256::hash(&[b"thimble-genesis", subnet]),
            height: Height::zero(),
            time,
            round: Round::zero(),
            certifications: Vec::new(),
            ingress: Vec::new(),
            payload: None,
            queries: None,
        }
    }

    /// Randomness for execution, of the states whose certifications it carries.
    pub(super) fn randomness(&self) -> Randomness {
        Randomness::Signed(self.certifications.iter().map(Certification::randomness).collect())
    }

    /// Why no node votes for a block with these certifications: a function of the block and of the
    /// subnet's key. `known` gives a signature that was verified before; signatures are unique.
    ///
    /// Which states they are of does not matter to a vote: execution ignores those that nothing
    /// waits for, by the state that all members have before the block. A voter cannot refuse those:
    /// it may not have executed the parent, and the newest state that it has is not the others'. So
    /// they are verified together, and some in vain cost about as much as one.
    pub(super) fn check_certifications(
        &self,
        key: &nidkg::PublicKey,
        known: impl Fn(&[u8; 32]) -> Option<Signature>,
    ) -> Result<(), String> {
        let roots: BTreeSet<_> = self.certifications.iter().map(|it| it.root).collect();
        if roots.len() != self.certifications.len() {
            return Err("it carries a certification twice".into());
        }
        let mut unknown = Vec::new();
        let mut is_signed = true;
        for Certification { root, signature } in &self.certifications {
            match known(root) {
                Some(known) => is_signed &= known == *signature,
                None => unknown.push((state_root_message(root), *signature)),
            }
        }
        if !is_signed || !nidkg::verify_all(key, &unknown) {
            return Err("it carries a certification that the subnet did not sign".into());
        }
        Ok(())
    }

    /// Why no node votes for a block that names these calls, as far as the names alone say. A
    /// function of the block and of limits that members compare: nothing has to be fetched for
    /// it, and every honest node says the same.
    pub(super) fn check_names(&self, bounds: &NameBounds) -> Result<(), String> {
        let named = self.ingress.len() as u64;
        if named > bounds.calls {
            return Err(format!(
                "it names {named} calls, over block_ingress_messages = {}",
                bounds.calls
            ));
        }
        let ids: BTreeSet<_> = self.ingress.iter().map(|name| name.id).collect();
        if ids.len() != self.ingress.len() {
            return Err("it names a call twice".into());
        }
        if let Some(name) =
            self.ingress.iter().find(|name| u64::from(name.bytes) > bounds.call_bytes)
        {
            return Err(format!(
                "it names a call of {} bytes, over body_bytes = {}",
                name.bytes, bounds.call_bytes
            ));
        }
        // One call always fits, or it could never be executed.
        let bytes: u64 = self.ingress.iter().map(CallName::accounted_bytes).sum();
        if named > 1 && bytes > bounds.bytes {
            return Err(format!(
                "its calls have {bytes} bytes, over block_ingress_bytes = {}",
                bounds.bytes
            ));
        }
        Ok(())
    }
}

impl Write for Block {
    fn write(&self, out: &mut impl BufMut) {
        self.parent.write(out);
        self.height.write(out);
        self.time.0.write(out);
        self.round.write(out);
        self.certifications.write(out);
        self.ingress.len().write(out);
        self.ingress.iter().for_each(|name| name.write(out));
        self.payload.write(out);
        self.queries.write(out);
    }
}

impl EncodeSize for Block {
    fn encode_size(&self) -> usize {
        Digest::SIZE
            + self.height.encode_size()
            + u64::SIZE
            + self.round.encode_size()
            + self.certifications.encode_size()
            + self.ingress.len().encode_size()
            + self.ingress.iter().map(EncodeSize::encode_size).sum::<usize>()
            + self.payload.encode_size()
            + self.queries.encode_size()
    }
}

impl Read for Block {
    type Cfg = BlockBounds;

    fn read_cfg(buf: &mut impl Buf, bounds: &BlockBounds) -> Result<Self, Error> {
        Ok(Self {
            parent: Digest::read(buf)?,
            height: Height::read(buf)?,
            time: Time(u64::read(buf)?),
            round: Round::read(buf)?,
            certifications: Vec::<Certification>::read_range(
                buf,
                RangeCfg::from(0..=CERTIFICATIONS_MAX),
            )?,
            ingress: Vec::<CallName>::read_range(buf, RangeCfg::from(0..=bounds.ingress))?,
            payload: Option::<KeyPayload>::read_cfg(buf, &bounds.payload)?,
            queries: Option::<BlockQueryReport>::read(buf)?,
        })
    }
}

impl Digestible for Block {
    type Digest = Digest;

    fn digest(&self) -> Digest {
        Sha256::hash(&[&commonware_codec::Encode::encode(self)])
    }
}

impl Heightable for Block {
    fn height(&self) -> Height {
        self.height
    }
}

impl commonware_consensus::Block for Block {
    fn parent(&self) -> Digest {
        self.parent
    }
}

/// What [`Block::check_names`] compares with.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameBounds {
    pub(super) calls: u64,
    /// Accounted bytes of a block's calls, unless there is only one.
    pub(super) bytes: u64,
    pub(super) call_bytes: u64,
}

impl BoundedBlock for Block {
    fn max_encode_size(bounds: &BlockBounds) -> usize {
        Digest::SIZE
            + 10
            + u64::SIZE
            + ROUND_BYTES_MAX
            + 1
            + CERTIFICATIONS_MAX * Certification::BYTES
            + 5
            + bounds.ingress * CallName::BYTES_MAX
            + 1
            + u32::SIZE
            + 5
            + bounds.payload
            + 1
            + BlockQueryReport::BYTES_MAX
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use commonware_codec::{Decode as _, Encode as _};
    use commonware_consensus::types::{Epoch, View};
    use rand::{SeedableRng as _, rngs::StdRng};

    use super::*;

    const BOUNDS: NameBounds = NameBounds { calls: 3, bytes: 10_000, call_bytes: 20_000 };

    fn named(calls: &[(u8, u32)]) -> Block {
        let name = |(id, bytes): &(u8, u32)| CallName {
            id: IngressId([*id; 32]),
            digest: [*bytes as u8; 32],
            bytes: *bytes,
        };
        let genesis = Block::genesis(b"subnet", Time(1));
        Block { ingress: calls.iter().map(name).collect(), ..genesis }
    }

    // Promise: P17 - A block is validated by the envelope lengths that it names.
    #[test]
    fn a_block_is_judged_by_the_lengths_it_names() {
        let refused =
            |calls: &[(u8, u32)]| named(calls).check_names(&BOUNDS).err().unwrap_or_default();
        assert_eq!(refused(&[]), "");
        assert_eq!(refused(&[(1, 3_000), (2, 3_000), (3, 3_000)]), "");
        assert!(
            refused(&[(1, 5_000), (2, 5_000)])
                .contains("10256 bytes, over block_ingress_bytes = 10000")
        );
        assert_eq!(refused(&[(1, 20_000)]), "", "one call always fits");
        assert!(refused(&[(1, 20_001)]).contains("over body_bytes = 20000"));
        assert!(refused(&[(1, 0), (2, 0), (3, 0), (4, 0)]).contains("block_ingress_messages = 3"));
        // Two envelopes of one request.
        assert!(refused(&[(1, 200), (1, 2_000)]).contains("twice"));
    }

    // Promise: P9 - A block carries no certification that the subnet did not sign.
    #[test]
    fn certifications_are_judged_by_the_subnets_key() {
        let mut rng = StdRng::seed_from_u64(5);
        let (committee, shares) = nidkg::deal(1, 1, &mut rng).unwrap();
        let certification = |root: [u8; 32]| {
            let share = shares[0].sign(&state_root_message(&root));
            Certification { root, signature: Signature(share.0) }
        };
        let verdict = |certifications: Vec<Certification>, known: Option<Signature>| {
            let block = Block { certifications, ..Block::genesis(b"subnet", Time(1)) };
            block.check_certifications(&committee.public_key, |_| known)
        };
        let (one, other) = (certification([1; 32]), certification([2; 32]));
        assert_eq!(verdict(vec![], None), Ok(()));
        assert_eq!(verdict(vec![one.clone(), other.clone()], None), Ok(()));
        assert!(verdict(vec![one.clone(), one.clone()], None).is_err(), "the same twice");
        // The signature on another state, under this one's root: the value would be known before.
        let swapped = Certification { root: other.root, signature: one.signature };
        assert!(verdict(vec![one.clone(), swapped.clone()], None).is_err());
        // A member that verified the state's signature before gives the same verdicts.
        assert_eq!(verdict(vec![other.clone()], Some(other.signature)), Ok(()));
        assert!(verdict(vec![swapped], Some(other.signature)).is_err());
        // Both are valid, and neither is under its root.
        let exchanged = Certification { root: one.root, signature: other.signature };
        let swapped = Certification { root: other.root, signature: one.signature };
        assert!(verdict(vec![exchanged, swapped], None).is_err());
        // One value for each state, whoever signs.
        assert_eq!(one.randomness(), certification([1; 32]).randomness());
        assert_ne!(one.randomness().value, other.randomness().value);
    }

    #[test]
    fn certifications_read_back_and_their_number_is_bounded() {
        let bounds = BlockBounds { ingress: 3, payload: 10 };
        let block = |count: usize| {
            let signature = Signature([7; 48]);
            let certifications =
                (0..count).map(|it| Certification { root: [it as u8; 32], signature });
            Block {
                round: Round::new(Epoch::new(u64::MAX), View::new(u64::MAX)),
                certifications: certifications.collect(),
                ..named(&[(1, 0), (2, 200), (3, u32::MAX)])
            }
        };
        let most = block(CERTIFICATIONS_MAX);
        let bytes = most.encode();
        assert!(bytes.len() <= Block::max_encode_size(&bounds));
        assert_eq!(Block::decode_cfg(bytes, &bounds).ok(), Some(most));
        let more = block(CERTIFICATIONS_MAX + 1).encode();
        assert!(Block::decode_cfg(more, &bounds).is_err());
    }

    #[test]
    fn names_read_back_and_their_size_is_bounded() {
        let bounds = BlockBounds { ingress: 3, payload: 10 };
        let block = named(&[(1, 0), (2, 200), (3, u32::MAX)]);
        let bytes = block.encode();
        assert!(bytes.len() <= Block::max_encode_size(&bounds));
        assert_eq!(Block::decode_cfg(bytes, &bounds).ok(), Some(block));
        assert!(Block::decode_cfg(named(&[(1, 0); 4]).encode(), &bounds).is_err());
    }
}
