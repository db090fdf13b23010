//! What the round loop of a simulated node needs of a state, and the two things that can be one: [`ToyReplica`] and [`Real`].

use std::{collections::BTreeMap, sync::Arc};

use commonware_utils::sync::Mutex;
use state::{Batch, Fault, Height, SubnetKey};

use super::{
    Subnet,
    net::Durable,
    real::Real,
    toy::{CHECKPOINT_EVERY, ToyReplica},
};
use crate::{Certificate, Demand, StateOffer, StateServer};

/// What a round came to.
pub(super) struct Executed {
    pub(super) root: [u8; 32],
    pub(super) faults: Vec<Fault>,
    /// Calls of clients that were carried out and answered.
    pub(super) answered: Vec<String>,
    /// What must not happen, and the node can go on from.
    pub(super) wrong: Vec<String>,
    /// Canisters with code.
    pub(super) deployed: usize,
    pub(super) demand: Demand,
}

/// What came of taking over a state.
pub(super) enum TookOver {
    /// It counts: the node starts again on top of it.
    Ready,
    /// Nobody shows it any more.
    Over,
    /// The engine ended meanwhile.
    Ended,
    /// It cannot be, and nothing was wrong with the disk.
    Failed(String),
}

/// See the module.
pub(super) enum Replica {
    Toy(Box<ToyReplica>),
    Real(Box<Real>),
}

impl Replica {
    pub(super) fn height(&self) -> Height {
        match self {
            Self::Toy(replica) => Height(replica.toy.height),
            Self::Real(real) => real.executor.height(),
        }
    }

    pub(super) fn key(&self) -> Option<SubnetKey> {
        match self {
            Self::Toy(replica) => replica.toy.key.clone(),
            Self::Real(real) => real.executor.subnet_key().cloned(),
        }
    }

    /// What it shows others.
    pub(super) fn states(&self) -> Arc<dyn StateServer> {
        match self {
            Self::Toy(replica) => replica.states.clone(),
            Self::Real(real) => real.states(),
        }
    }

    pub(super) fn execute(&mut self, batch: &Batch, recorded: &[Fault]) -> Result<Executed, String> {
        match self {
            Self::Toy(replica) => Ok(replica.execute(batch)),
            Self::Real(real) => real.execute(batch, recorded),
        }
    }

    /// How often each call was executed, as the state itself knows it.
    pub(super) fn executed(&self) -> BTreeMap<String, u32> {
        match self {
            Self::Toy(replica) => replica.toy.executed.clone(),
            Self::Real(real) => real.noted(),
        }
    }

    pub(super) fn checkpoint_due(&self) -> bool {
        match self {
            Self::Toy(replica) => replica.toy.height.is_multiple_of(CHECKPOINT_EVERY),
            Self::Real(real) => real.executor.checkpoint_due(),
        }
    }

    /// Makes the state durable; one that is owed a manifest gets it begun.
    pub(super) fn checkpoint(&mut self, durable: &Mutex<Durable>) -> Result<(), String> {
        match self {
            Self::Toy(replica) => replica.checkpoint(durable),
            Self::Real(real) => real.checkpoint()?,
        }
        Ok(())
    }

    pub(super) fn certified(&mut self, certificate: &Certificate) -> Result<(), String> {
        match self {
            Self::Toy(replica) => replica.states.certified(certificate),
            Self::Real(real) => real.certified(certificate)?,
        }
        Ok(())
    }

    pub(super) async fn take_over(
        &mut self,
        subnet: &mut Subnet,
        offer: StateOffer,
        durable: &Mutex<Durable>,
    ) -> TookOver {
        match self {
            Self::Toy(replica) => replica.take_over(subnet, offer, durable).await,
            Self::Real(real) => real.take_over(subnet, offer).await,
        }
    }
}
