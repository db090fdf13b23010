//! Several subnets in one state: what a server for tests hosts, where calls between subnets are
//! calls within a round.
//!
//! A node of a subnet has none of it: its state is that of one subnet, whose ids follow each other.

use std::fmt::Debug;

use ic_principal::Principal;
use state::{CanisterId, Origin};

use crate::config::ExecutorConfig;

/// Which of several subnets a canister belongs to. Its answer for an id or an origin is the same
/// whenever the batch is executed.
pub trait Placement: Send + Sync + Debug {
    /// Id of the subnet that hosts a canister id; none where no subnet does.
    fn subnet_of(&self, id: &CanisterId) -> Option<Principal>;

    /// Whether canisters on the subnet that hosts this id pay nothing, as on system subnets of the
    /// public network.
    fn is_free(&self, id: &CanisterId) -> bool;

    /// Whether this is the id of one of the subnets, whose management canister it then names.
    fn is_subnet(&self, id: &Principal) -> bool;

    /// The id of a canister that asks for none, made by a call of `origin`. `number` counts such
    /// canisters, from 0, over all subnets. None when the ids are used up.
    fn fresh_id(&self, origin: &Origin, number: u64) -> Option<CanisterId>;
}

impl ExecutorConfig {
    pub(crate) fn subnet_of(&self, id: &CanisterId) -> Principal {
        let placed = self.placement.as_ref().and_then(|placement| placement.subnet_of(id));
        placed.unwrap_or(self.subnet.subnet_id)
    }

    pub(crate) fn is_free(&self, id: &CanisterId) -> bool {
        self.placement.as_ref().is_some_and(|placement| placement.is_free(id))
    }

    /// Whether a principal names the management canister by the id of a subnet that is hosted here.
    pub(crate) fn is_subnet(&self, id: &Principal) -> bool {
        *id == self.subnet.subnet_id
            || self.placement.as_ref().is_some_and(|placement| placement.is_subnet(id))
    }

    /// The id that the next canister is given, where `next` is its number; none when the ids are
    /// used up.
    pub(crate) fn fresh_id(&self, origin: &Origin, next: u64) -> Option<CanisterId> {
        match &self.placement {
            Some(placement) => placement.fresh_id(origin, next.saturating_sub(self.first_canister)),
            None => Some(Self::canister_id(next)),
        }
    }
}
