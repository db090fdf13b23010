//! The outcome: plan, dealings, transcript, and the proof of all of it.

use std::cmp::Ordering;

use ic_principal::Principal;
use nidkg::{
    Committee, EncryptionSecretKey, Engine, NodeIndex, SecretShare, Transcript,
    create_transcript_from_all, verify_dealings,
};
use rand::{CryptoRng, RngCore};
use serde::{Deserialize, Serialize};

use crate::{
    GenesisError, NODES_MAX, Plan, SignedDealing,
    dealing::DealingFile,
    encoding::{self, Blob, BoundedList, VERSION},
    hash::Message,
    plan::PlanFile,
};

/// A genesis larger than this is not read: 64 dealings to 64 nodes take two thirds of it.
pub const GENESIS_BYTES_MAX: usize = 32 << 20;

/// A subnet's genesis as it was read: the plan is checked, all else is not. See
/// [`Genesis::verify`].
#[derive(Clone)]
pub struct Genesis {
    plan: Plan,
    /// By rising index of the dealer.
    dealings: Vec<SignedDealing>,
    transcript: Vec<u8>,
}

/// A genesis of which everything was checked.
pub struct VerifiedGenesis {
    plan: Plan,
    dealers: Vec<NodeIndex>,
    transcript: Transcript,
    hash: [u8; 32],
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GenesisFile {
    version: u32,
    plan: PlanFile,
    dealings: BoundedList<DealingFile, NODES_MAX>,
    /// Bytes of the NIDKG transcript. They follow from the dealings; here for readers that do not
    /// verify dealings.
    transcript: Blob,
}

impl Genesis {
    /// Makes the genesis from all of these dealings, after verifying every one of them. `rng` must
    /// be unpredictable to dealers.
    pub fn assemble(
        engine: &Engine,
        plan: Plan,
        dealings: Vec<SignedDealing>,
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<(Self, VerifiedGenesis), GenesisError> {
        let mut placed = dealings
            .into_iter()
            .map(|dealing| Ok((dealing.check(&plan)?, dealing)))
            .collect::<Result<Vec<_>, GenesisError>>()?;
        placed.sort_by_key(|(index, _)| *index);
        let dealings: Vec<_> = placed.into_iter().map(|(_, dealing)| dealing).collect();
        let transcript = transcript(engine, &plan, &dealings, rng)?;
        let genesis = Self { plan, dealings, transcript: transcript.to_bytes() };
        let verified = genesis.clone().into_verified(transcript);
        Ok((genesis, verified))
    }

    /// Reads a genesis and checks its plan.
    pub fn from_json(bytes: &[u8]) -> Result<Self, GenesisError> {
        let what = "the genesis";
        let file: GenesisFile = encoding::read(what, bytes, GENESIS_BYTES_MAX)?;
        let plan = file.plan.try_into()?;
        let dealings =
            file.dealings.0.into_iter().map(SignedDealing::try_from).collect::<Result<_, _>>()?;
        Ok(Self { plan, dealings, transcript: file.transcript.0 })
    }

    /// The content of the genesis file. The same dealings for the same plan give the same bytes on
    /// every node.
    pub fn to_json(&self) -> String {
        encoding::write(&GenesisFile {
            version: VERSION,
            plan: PlanFile::from(&self.plan),
            dealings: BoundedList(self.dealings.iter().map(DealingFile::from).collect()),
            transcript: Blob(self.transcript.clone()),
        })
    }

    /// The plan inside.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Checks everything from scratch: each dealer's signature and proofs, and that the transcript
    /// is exactly the one of the dealings. (Plan and records were checked when they were read.)
    /// `rng` must be unpredictable to dealers.
    pub fn verify(
        self,
        engine: &Engine,
        rng: &mut (impl RngCore + CryptoRng),
    ) -> Result<VerifiedGenesis, GenesisError> {
        let transcript = transcript(engine, &self.plan, &self.dealings, rng)?;
        if transcript.to_bytes() != self.transcript {
            return Err(GenesisError::WrongTranscript);
        }
        Ok(self.into_verified(transcript))
    }

    fn into_verified(self, transcript: Transcript) -> VerifiedGenesis {
        let head = Message::new("thimble-genesis")
            .number(u64::from(VERSION))
            .part(self.plan.hash())
            .number(self.dealings.len() as u64);
        let message =
            self.dealings.iter().fold(head, |message, dealing| dealing.hash_into(message));
        let hash = message.part(&self.transcript).digest();
        VerifiedGenesis {
            plan: self.plan,
            dealers: transcript.dealers().collect(),
            transcript,
            hash,
        }
    }
}

/// Verifies dealings ordered by rising index of their dealers, and makes the transcript of all of
/// them.
fn transcript(
    engine: &Engine,
    plan: &Plan,
    dealings: &[SignedDealing],
    rng: &mut (impl RngCore + CryptoRng),
) -> Result<Transcript, GenesisError> {
    let need = plan.dealings_needed();
    if dealings.len() < need as usize {
        return Err(GenesisError::TooFewDealings { have: dealings.len(), need });
    }
    // Signatures first: unsigned data costs no more than that.
    let indices =
        dealings.iter().map(|dealing| dealing.check(plan)).collect::<Result<Vec<_>, _>>()?;
    for (pair, dealing) in indices.windows(2).zip(dealings) {
        match pair[0].cmp(&pair[1]) {
            Ordering::Less => {}
            Ordering::Equal => return Err(GenesisError::TwiceDealt(dealing.dealer())),
            Ordering::Greater => return Err(GenesisError::DealingOrder),
        }
    }
    let decoded = indices
        .into_iter()
        .zip(dealings)
        .map(|(index, dealing)| Ok((index, dealing.decode()?)))
        .collect::<Result<Vec<_>, GenesisError>>()?;
    let verified = verify_dealings(engine, plan.session(), decoded, rng)
        .into_iter()
        .zip(dealings)
        .map(|(result, dealing)| {
            result.map_err(|error| GenesisError::Dealing { dealer: dealing.dealer(), error })
        })
        .collect::<Result<Vec<_>, _>>()?;
    Ok(create_transcript_from_all(engine, plan.session(), &verified)?)
}

impl VerifiedGenesis {
    /// The nodes, and when their subnet begins.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Dealers of the dealings that make up the key, by index.
    pub fn dealers(&self) -> &[NodeIndex] {
        &self.dealers
    }

    /// The subnet's public key, the threshold, the public key of each share.
    pub fn committee(&self) -> &Committee {
        self.transcript.committee()
    }

    /// DER of the subnet's public key, which clients call the root key.
    pub fn root_key_der(&self) -> Vec<u8> {
        nidkg::public_key_to_der(&self.committee().public_key)
    }

    /// The subnet is known by the hash of its key.
    pub fn subnet_id(&self) -> Principal {
        Principal::self_authenticating(self.root_key_der())
    }

    /// Covers plan, dealings and transcript: nodes with the same hash have the same subnet.
    pub fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// Opens this node's share with its encryption key, and checks it against its public key.
    pub fn open_share(
        &self,
        engine: &Engine,
        index: NodeIndex,
        key: &EncryptionSecretKey,
    ) -> Result<SecretShare, GenesisError> {
        Ok(self.transcript.load(engine, self.plan.session(), index, key)?)
    }
}
