//! Messages between members, as far as attacks change them: separate definitions of this program,
//! so that the decoders under attack are not those that make the attack. A message that does not
//! fit any form is reported as a defect of this program.

use bytes::{BufMut, Bytes, BytesMut};
use commonware_codec::{
    Buf, DecodeExt as _, Encode, EncodeSize, Error, RangeCfg, Read, ReadExt, ReadRangeExt, Write,
    varint::UInt,
};
use commonware_consensus::types::{Height as BlockHeight, Round};
use commonware_cryptography::{Hasher as _, Sha256, sha256};
use consensus::adversary::VoteScheme;
use nidkg::{Signature, SignatureShare};
use serde::{Deserialize, Serialize};
use state::{Height, IngressId, OutcallAnswer, OutcallId, SignedIngress};

pub(crate) type Digest = sha256::Digest;

/// More than any block has.
const MANY: usize = 1 << 20;

/// A call as a block names it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Name {
    pub(crate) id: [u8; 32],
    pub(crate) digest: [u8; 32],
    pub(crate) bytes: u32,
}

impl Write for Name {
    fn write(&self, out: &mut impl BufMut) {
        self.id.write(out);
        self.digest.write(out);
        UInt(self.bytes).write(out);
    }
}

impl EncodeSize for Name {
    fn encode_size(&self) -> usize {
        64 + UInt(self.bytes).encode_size()
    }
}

impl Read for Name {
    type Cfg = ();

    fn read_cfg(buf: &mut impl Buf, (): &()) -> Result<Self, Error> {
        Ok(Self {
            id: <[u8; 32]>::read(buf)?,
            digest: <[u8; 32]>::read(buf)?,
            bytes: UInt::<u32>::read(buf)?.into(),
        })
    }
}

/// A report of queries: the node, and canisters with four figures each.
pub(crate) type QueryReport = (Vec<u8>, Vec<(Vec<u8>, [u64; 4])>);

/// A block.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) parent: Digest,
    pub(crate) height: BlockHeight,
    pub(crate) time: u64,
    pub(crate) round: Round,
    /// Roots of states, with the subnet's signatures.
    pub(crate) certifications: Vec<([u8; 32], [u8; 48])>,
    pub(crate) ingress: Vec<Name>,
    /// Its maker's place and something of the subnet's key.
    pub(crate) payload: Option<(u32, Vec<u8>)>,
    pub(crate) queries: Option<QueryReport>,
}

impl Block {
    /// The block in a message; `None` unless it encodes to the same message again.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut buf = Bytes::copy_from_slice(bytes);
        let block = Self::read(&mut buf).ok()?;
        (block.encode() == bytes).then_some(block)
    }

    fn read(buf: &mut Bytes) -> Result<Self, Error> {
        Ok(Self {
            parent: Digest::read(buf)?,
            height: BlockHeight::read(buf)?,
            time: u64::read(buf)?,
            round: Round::read(buf)?,
            certifications: read_certifications(buf)?,
            ingress: Vec::<Name>::read_range(buf, RangeCfg::from(0..=MANY))?,
            payload: match bool::read(buf)? {
                true => {
                    Some((u32::read(buf)?, Vec::<u8>::read_range(buf, RangeCfg::from(0..=MANY))?))
                }
                false => None,
            },
            queries: match bool::read(buf)? {
                true => Some(read_report(buf)?),
                false => None,
            },
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = BytesMut::new();
        self.parent.write(&mut out);
        self.height.write(&mut out);
        self.time.write(&mut out);
        self.round.write(&mut out);
        self.certifications.len().write(&mut out);
        for (root, signature) in &self.certifications {
            root.write(&mut out);
            signature.write(&mut out);
        }
        self.ingress.write(&mut out);
        self.payload.is_some().write(&mut out);
        if let Some((leader, bytes)) = &self.payload {
            leader.write(&mut out);
            bytes.write(&mut out);
        }
        self.queries.is_some().write(&mut out);
        if let Some((node, canisters)) = &self.queries {
            node.write(&mut out);
            canisters.len().write(&mut out);
            for (canister, figures) in canisters {
                canister.write(&mut out);
                figures.iter().for_each(|figure| UInt(*figure).write(&mut out));
            }
        }
        out.to_vec()
    }

    pub(crate) fn digest(&self) -> Digest {
        Sha256::hash(&[&self.encode()])
    }
}

/// A root and a signature on it.
type CertificationBytes = ([u8; 32], [u8; 48]);

fn read_certifications(buf: &mut Bytes) -> Result<Vec<CertificationBytes>, Error> {
    let count = usize::read_cfg(buf, &RangeCfg::from(0..=MANY))?;
    (0..count).map(|_| Ok((<[u8; 32]>::read(buf)?, <[u8; 48]>::read(buf)?))).collect()
}

fn read_report(buf: &mut Bytes) -> Result<QueryReport, Error> {
    let principal = |buf: &mut Bytes| Vec::<u8>::read_range(buf, RangeCfg::from(0..=29));
    let node = principal(buf)?;
    let count = usize::read_cfg(buf, &RangeCfg::from(0..=MANY))?;
    let mut canisters = Vec::new();
    for _ in 0..count {
        let canister = principal(buf)?;
        let mut figures = [0; 4];
        for figure in &mut figures {
            *figure = UInt::<u64>::read(buf)?.into();
        }
        canisters.push((canister, figures));
    }
    Ok((node, canisters))
}

/// The epoch that begins a message of the engine, and the rest of it.
pub(crate) fn split_epoch(bytes: &[u8]) -> Option<(Vec<u8>, Bytes)> {
    let mut buf = Bytes::copy_from_slice(bytes);
    UInt::<u64>::read(&mut buf).ok()?;
    Some((bytes[..bytes.len() - buf.len()].to_vec(), buf))
}

/// A vote with its epoch in front.
pub(crate) fn with_epoch(epoch: &[u8], message: &impl Encode) -> Vec<u8> {
    [epoch, message.encode().as_ref()].concat()
}

/// A vote in a message of the engine.
pub(crate) fn decode_vote(
    bytes: Bytes,
) -> Option<commonware_consensus::simplex::types::Vote<VoteScheme, Digest>> {
    commonware_consensus::simplex::types::Vote::decode(bytes).ok()
}

/// About state roots.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum RootMessage {
    Share { height: Height, root: [u8; 32], share: SignatureShare, again: bool },
    Certificate { height: Height, root: [u8; 32], signature: Signature },
    Limits { limits: Vec<(String, u64)>, ask: bool },
    Awaited { committee: Height, height: Height, root: [u8; 32], share: SignatureShare },
}

/// About answers to outcalls.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum OutcallMessage {
    Shares { from: Height, shares: Vec<OutcallShare> },
    Answer(OutcallAnswer),
}

/// A share on an answer.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct OutcallShare {
    pub(crate) id: OutcallId,
    pub(crate) digest: [u8; 32],
    pub(crate) share: SignatureShare,
}

/// About calls.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum CallMessage {
    Announce(Vec<SignedIngress>),
    Request { height: Option<Height>, names: Vec<(IngressId, [u8; 32], u32)> },
    Response(Vec<RequestedIngress>),
}

/// A call that was asked for.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct RequestedIngress {
    pub(crate) digest: [u8; 32],
    pub(crate) signed: SignedIngress,
}

/// About states.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum SyncMessage {
    Ask { next: Height },
    Answer { next: NextBlock, offer: Option<Offer> },
    Get { height: Height, name: Vec<u8> },
    Chunk { height: Height, name: Vec<u8>, bytes: Vec<u8> },
    Not { height: Height, name: Vec<u8> },
}

/// Whether a block is kept.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum NextBlock {
    Kept,
    Gone,
    Unknown,
}

/// A state that is offered.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) certificate: Vec<u8>,
    /// Keys of votes, and a hash of the rest of how the subnet's key is held.
    pub(crate) key: Option<(Vec<u8>, [u8; 32])>,
    pub(crate) block: Vec<u8>,
    pub(crate) finalization: Vec<u8>,
}

/// A message of one of the channels in postcard; `None` if it is of another form.
pub(crate) fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// Encodes such a message.
pub(crate) fn written<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap_or_default()
}
