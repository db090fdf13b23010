//! What the nodes agree on: a short header, the names of calls, and now and then something of the subnet's key.
//!
//! Calls themselves travel apart (see [`super::calls`]), so each crosses a wire once and is in memory once, however often the block that names it is
//! proposed, voted on and stored.

use bytes::{BufMut, Bytes};
use commonware_codec::{Buf, EncodeSize, Error, FixedSize, RangeCfg, Read, ReadExt, ReadRangeExt, Write};
use commonware_consensus::{BoundedBlock, Heightable, types::Height};
use commonware_cryptography::{Digestible, Hasher, Sha256, sha256};
use state::{IngressId, Time};

use super::key::Seed;

/// Names a block.
pub(super) type Digest = sha256::Digest;

/// Bytes of an encoded seed at most: epoch and view as varints, the signature.
const SEED_BYTES_MAX: usize = 1 + 10 + 10 + 48;

/// What bounds a block when it is decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockBounds {
    /// Calls named.
    pub(super) ingress: usize,
    /// Bytes of what it carries for the subnet's key.
    pub(super) payload: usize,
}

/// What a block carries for the subnet's key: a dealing, or a change of the members.
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

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) parent: Digest,
    pub(super) height: Height,
    pub(super) time: Time,
    /// Randomness of the round in which the parent was agreed on, known to nobody before that: this block's randomness comes of it. None in the first block.
    pub(super) seed: Option<Seed>,
    pub(super) ingress: Vec<IngressId>,
    /// In most blocks none.
    pub(super) payload: Option<KeyPayload>,
}

impl Block {
    /// The block before the first. It commits to who the subnet is.
    pub(super) fn genesis(subnet: &[u8], time: Time) -> Self {
        Self {
            parent: Sha256::hash(&[b"thimble-genesis", subnet]),
            height: Height::zero(),
            time,
            seed: None,
            ingress: Vec::new(),
            payload: None,
        }
    }

    /// Randomness for execution: of the seed and the height, as one seed never serves two blocks of a chain.
    pub(super) fn randomness(&self) -> [u8; 32] {
        let height = self.height.get().to_be_bytes();
        let digest = match &self.seed {
            Some(seed) => {
                Sha256::hash(&[b"thimble-randomness", &commonware_codec::Encode::encode(seed), &height])
            }
            None => Sha256::hash(&[b"thimble-randomness", self.parent.as_ref(), &height]),
        };
        digest.0
    }
}

impl Write for Block {
    fn write(&self, out: &mut impl BufMut) {
        self.parent.write(out);
        self.height.write(out);
        self.time.0.write(out);
        self.seed.write(out);
        self.ingress.len().write(out);
        self.ingress.iter().for_each(|id| id.0.write(out));
        self.payload.write(out);
    }
}

impl EncodeSize for Block {
    fn encode_size(&self) -> usize {
        Digest::SIZE
            + self.height.encode_size()
            + u64::SIZE
            + self.seed.encode_size()
            + self.ingress.len().encode_size()
            + self.ingress.len() * 32
            + self.payload.encode_size()
    }
}

impl Read for Block {
    type Cfg = BlockBounds;

    fn read_cfg(buf: &mut impl Buf, bounds: &BlockBounds) -> Result<Self, Error> {
        Ok(Self {
            parent: Digest::read(buf)?,
            height: Height::read(buf)?,
            time: Time(u64::read(buf)?),
            seed: Option::<Seed>::read(buf)?,
            ingress: Vec::<[u8; 32]>::read_range(buf, RangeCfg::from(0..=bounds.ingress))?
                .into_iter()
                .map(IngressId)
                .collect(),
            payload: Option::<KeyPayload>::read_cfg(buf, &bounds.payload)?,
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

impl BoundedBlock for Block {
    fn max_encode_size(bounds: &BlockBounds) -> usize {
        Digest::SIZE
            + 10
            + u64::SIZE
            + SEED_BYTES_MAX
            + 5
            + bounds.ingress * 32
            + 1
            + u32::SIZE
            + 5
            + bounds.payload
    }
}
