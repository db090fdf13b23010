//! A session: everything that all participants of one key generation agree on before it starts.

use thiserror::Error;

use crate::{
    curve::G1Affine,
    forward::{EncryptionPublicKey, Epoch},
    oracle::Oracle,
    parameters::RECEIVERS_MAX,
    threshold::{Committee, NodeIndex},
};

/// Where the key comes from.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per session")]
pub enum Source {
    /// A new key: the sum of the dealers' random keys.
    Fresh {
        /// How many dealers there may be; their indices are below it.
        dealers: u32,
        /// Dealings a transcript is made of at least: one more than the number of dealers that may
        /// be corrupt, so that one is honest.
        dealings: u32,
    },
    /// The key of an existing committee, whose members deal their shares. Its threshold is the
    /// number of dealings.
    Reshare(Committee),
}

impl Source {
    /// Dealers there may be, and dealings that a transcript is made of at least.
    fn dealers_and_dealings(&self) -> (u32, u32) {
        match self {
            Self::Fresh { dealers, dealings } => (*dealers, *dealings),
            Self::Reshare(committee) => (committee.shares.len() as u32, committee.threshold),
        }
    }
}

/// One key generation. Equal on every node, or nothing of it fits together.
#[derive(Clone, Debug)]
pub struct Session {
    id: [u8; 32],
    epoch: Epoch,
    threshold: u32,
    receivers: Vec<EncryptionPublicKey>,
    source: Source,
    pub(crate) digest: [u8; 32],
}

/// A session that cannot be.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the text of an error describes it and its fields")]
pub enum SessionError {
    #[error("{receivers} receivers, outside 1..={RECEIVERS_MAX}")]
    Receivers { receivers: usize },
    #[error(
        "threshold {threshold} does not fit {receivers} receivers (1 <= threshold <= receivers)"
    )]
    Threshold { threshold: u32, receivers: usize },
    #[error(
        "{dealings} dealings of {dealers} dealers do not fit (1 <= dealings <= dealers <= \
         {RECEIVERS_MAX})"
    )]
    Dealers { dealings: u32, dealers: u32 },
    /// The same key twice: its owner would hold two shares.
    #[error("receivers {0} and {1} have the same encryption key")]
    SameKey(u32, u32),
}

impl Session {
    /// `id` names this key generation among all others of these nodes; using one twice lets
    /// dealings of one are used in the other.
    pub fn new(
        id: [u8; 32],
        epoch: Epoch,
        threshold: u32,
        receivers: Vec<EncryptionPublicKey>,
        source: Source,
    ) -> Result<Self, SessionError> {
        let count = receivers.len();
        if count == 0 || count > RECEIVERS_MAX as usize {
            return Err(SessionError::Receivers { receivers: count });
        }
        if threshold == 0 || threshold as usize > count {
            return Err(SessionError::Threshold { threshold, receivers: count });
        }
        let (dealers, dealings) = source.dealers_and_dealings();
        if dealings == 0 || dealings > dealers || dealers > RECEIVERS_MAX {
            return Err(SessionError::Dealers { dealings, dealers });
        }
        for (index, key) in receivers.iter().enumerate() {
            if let Some(other) = receivers[..index].iter().position(|other| other.y == key.y) {
                return Err(SessionError::SameKey(other as u32, index as u32));
            }
        }
        let oracle = Oracle::new("nidkg-v1-session")
            .bytes("id", &id)
            .number("epoch", u64::from(epoch.0))
            .number("threshold", u64::from(threshold))
            .number("dealers", u64::from(dealers))
            .number("dealings", u64::from(dealings));
        let oracle = receivers.iter().fold(oracle, |oracle, key| oracle.g1("receiver", &[key.y]));
        let oracle = match &source {
            Source::Fresh { .. } => oracle,
            Source::Reshare(committee) => committee.shares.iter().fold(
                oracle.bytes("public key", committee.public_key.as_bytes()),
                |oracle, share| oracle.bytes("old share", share.as_bytes()),
            ),
        };
        Ok(Self { id, epoch, threshold, receivers, source, digest: oracle.digest() })
    }

    /// The id given at construction.
    pub fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// The epoch that dealings are encrypted to.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Shares that will be needed to sign.
    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Keys of the future holders of shares, by index.
    pub fn receivers(&self) -> &[EncryptionPublicKey] {
        &self.receivers
    }

    /// Where the key comes from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Dealings a transcript is made of at least.
    pub fn dealings_needed(&self) -> u32 {
        self.source.dealers_and_dealings().1
    }

    /// Dealers there may be.
    pub(crate) fn dealers(&self) -> u32 {
        self.source.dealers_and_dealings().0
    }

    pub(crate) fn keys(&self) -> Vec<G1Affine> {
        self.receivers.iter().map(|key| key.y).collect()
    }

    /// The context that a ciphertext of `dealer` is bound to.
    pub(crate) fn context(&self, dealer: NodeIndex) -> [u8; 32] {
        Oracle::new("nidkg-v1-context")
            .bytes("session", &self.digest)
            .number("dealer", u64::from(dealer.0))
            .digest()
    }
}
