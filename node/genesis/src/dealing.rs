//! One node's dealing, signed by the node.

use ed25519_dalek::{Signature, Signer, SigningKey};
use ic_principal::Principal;
use nidkg::{Dealing, Engine, NodeIndex, create_dealing};
use rand::{CryptoRng, RngCore};
use serde::{Deserialize, Serialize};

use crate::{
    GenesisError, Plan,
    encoding::{self, Blob, Hex, VERSION, shortened},
    hash::Message,
    node_id,
};

/// A dealing larger than this is not read: 64 receivers take about half of it.
pub const DEALING_BYTES_MAX: usize = 512 << 10;

/// A dealing in its dealer's name. Decoded only: [`SignedDealing::check`] has the signature,
/// [`crate::Genesis::verify`] everything.
#[derive(Clone)]
pub struct SignedDealing {
    plan_hash: [u8; 32],
    dealer: Principal,
    dealing: Vec<u8>,
    signature: Signature,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DealingFile {
    version: u32,
    plan_hash: Hex<32>,
    /// Node id of the dealer, as text.
    dealer: String,
    dealing: Blob,
    /// Of the dealer's node key, over plan and dealing.
    signature: Hex<64>,
}

impl SignedDealing {
    /// Deals, as the node with this key.
    pub fn create(
        engine: &Engine,
        plan: &Plan,
        node: &SigningKey,
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<Self, GenesisError> {
        let dealer = node_id(&node.verifying_key());
        let index = plan.index_of(&node.verifying_key())?;
        let dealing = create_dealing(engine, plan.session(), index, None, rng)
            .map_err(|error| GenesisError::Dealing { dealer, error })?
            .to_bytes();
        let signature = node.sign(message(plan.hash(), &dealing).bytes());
        Ok(Self { plan_hash: *plan.hash(), dealer, dealing, signature })
    }

    /// Reads a dealing; nothing but its form is checked.
    pub fn from_json(bytes: &[u8]) -> Result<Self, GenesisError> {
        encoding::read::<DealingFile>("the dealing", bytes, DEALING_BYTES_MAX)?.try_into()
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        encoding::write(&DealingFile::from(self))
    }

    /// The dealer that it states.
    pub fn dealer(&self) -> Principal {
        self.dealer
    }

    /// Checks that it is for this plan, of one of its nodes, and signed by it. The proofs inside
    /// are checked with those of all others.
    pub fn check(&self, plan: &Plan) -> Result<NodeIndex, GenesisError> {
        let dealer = self.dealer;
        if self.plan_hash != *plan.hash() {
            let (stated, plan) = (hex::encode(self.plan_hash), hex::encode(plan.hash()));
            return Err(GenesisError::OtherPlan { dealer, stated, plan });
        }
        let (index, node) =
            plan.node(&dealer).ok_or_else(|| GenesisError::UnknownNode(dealer.to_text()))?;
        node.node_key()
            .verify_strict(message(plan.hash(), &self.dealing).bytes(), &self.signature)
            .map_err(|_| GenesisError::DealingSignature(dealer))?;
        Ok(index)
    }

    pub(crate) fn decode(&self) -> Result<Dealing, GenesisError> {
        Dealing::from_bytes(&self.dealing)
            .map_err(|error| GenesisError::DealingBytes { dealer: self.dealer, error })
    }

    /// All of it, into the hash of a genesis.
    pub(crate) fn hash_into(&self, message: Message) -> Message {
        message.part(self.dealer.as_slice()).part(&self.dealing).part(&self.signature.to_bytes())
    }
}

fn message(plan_hash: &[u8; 32], dealing: &[u8]) -> Message {
    Message::new("thimble-genesis-dealing").number(u64::from(VERSION)).part(plan_hash).part(dealing)
}

impl From<&SignedDealing> for DealingFile {
    fn from(dealing: &SignedDealing) -> Self {
        Self {
            version: VERSION,
            plan_hash: Hex(dealing.plan_hash),
            dealer: dealing.dealer.to_text(),
            dealing: Blob(dealing.dealing.clone()),
            signature: Hex(dealing.signature.to_bytes()),
        }
    }
}

impl TryFrom<DealingFile> for SignedDealing {
    type Error = GenesisError;

    fn try_from(file: DealingFile) -> Result<Self, GenesisError> {
        encoding::check_version("a dealing", file.version)?;
        let unknown = || GenesisError::UnknownNode(shortened(&file.dealer).to_owned());
        Ok(Self {
            plan_hash: file.plan_hash.0,
            dealer: encoding::principal(&file.dealer).ok_or_else(unknown)?,
            dealing: file.dealing.0,
            signature: Signature::from_bytes(&file.signature.0),
        })
    }
}
