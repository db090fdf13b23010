//! The subnets of an instance: their kinds, the canister ids they host, and where a new canister
//! goes.
//!
//! All subnets of an instance are parts of one replicated state: a subnet here consists of a range
//! of canister ids, an id (the hash of a key) and names of nodes. So calls between canisters of
//! different subnets are calls within a round, and the cost of an instance does not depend on its
//! subnets. The state is certified with the key of the root subnet: the NNS if there is one, else
//! the first.
//!
//! Ids: the ranges of named subnets (NNS, SNS, II, Fiduciary, Bitcoin) are those of the public
//! network, for canisters that ask for an id. In addition, each subnet has a range from the top of
//! all ids downwards, for canisters that do not ask for one. Both follow the clients' documentation
//! and tests.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Result, bail};
use execution::{ExecutorConfig, Placement};
use ic_principal::Principal;
use serde::{Deserialize, Serialize};
use state::{CanisterId, NodeInfo, Origin, RequestId};

use crate::keys::{self, SubnetKeys, seed};

/// Ids that a subnet is given at once.
const IDS_PER_SUBNET: u64 = 1 << 20;
/// Below all ranges that are given from the top: as many subnets as there can be.
pub(crate) const FIRST_GIVEN: u64 = u64::MAX - (1 << 30) + 1;
/// Subnets of one instance at most: ranges from the top must not reach those of the public network.
pub(crate) const SUBNETS_MAX: usize = 64;
/// Calls that wait for an id on a subnet they named.
const AIMS_MAX: usize = 10_000;

/// Kinds of subnets, by the names they have in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Kind {
    #[serde(rename = "NNS")]
    Nns,
    #[serde(rename = "SNS")]
    Sns,
    #[serde(rename = "II")]
    Ii,
    Fiduciary,
    Bitcoin,
    System,
    Application,
    VerifiedApplication,
}

impl Kind {
    /// Those of which there is one at most, with ids of the public network.
    const NAMED: [Self; 5] = [Self::Nns, Self::Sns, Self::Ii, Self::Fiduciary, Self::Bitcoin];

    /// Nodes of a subnet of the kind, as clients' tests count them.
    fn nodes(self) -> u64 {
        match self {
            Self::Nns => 40,
            Self::Sns | Self::Ii | Self::Fiduciary => 34,
            Self::Bitcoin | Self::System | Self::Application | Self::VerifiedApplication => 13,
        }
    }

    /// Whether the subnet is of the type `system` on the public network: its canisters pay nothing.
    fn is_system(self) -> bool {
        match self {
            Self::Nns | Self::Ii | Self::Bitcoin | Self::System => true,
            Self::Sns | Self::Fiduciary | Self::Application | Self::VerifiedApplication => false,
        }
    }

    /// First and last canister of the ranges on the public network.
    fn public_ranges(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nns => &[
                ("rwlgt-iiaaa-aaaaa-aaaaa-cai", "renrk-eyaaa-aaaaa-aaada-cai"),
                ("qoctq-giaaa-aaaaa-aaaea-cai", "n5n4y-3aaaa-aaaaa-p777q-cai"),
            ],
            Self::Ii => &[
                ("rdmx6-jaaaa-aaaaa-aaadq-cai", "rdmx6-jaaaa-aaaaa-aaadq-cai"),
                ("uc7f6-kaaaa-aaaaq-qaaaa-cai", "ijz7v-ziaaa-aaaaq-7777q-cai"),
            ],
            Self::Sns => &[("ybpmr-kqaaa-aaaaq-aaaaa-cai", "ekjw2-zyaaa-aaaaq-p777q-cai")],
            Self::Fiduciary => &[("mf7xa-laaaa-aaaar-qaaaa-cai", "qoznl-yiaaa-aaaar-7777q-cai")],
            Self::Bitcoin => &[("g3wsl-eqaaa-aaaan-aaaaa-cai", "2qqia-xyaaa-aaaan-p777q-cai")],
            Self::System | Self::Application | Self::VerifiedApplication => &[],
        }
    }
}

/// Numbers of canisters, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Range {
    fn holds(self, number: u64) -> bool {
        self.first <= number && number <= self.last
    }

    fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    pub(crate) fn ids(self) -> (CanisterId, CanisterId) {
        (ExecutorConfig::canister_id(self.first), ExecutorConfig::canister_id(self.last))
    }
}

fn public_ranges(kind: Kind) -> Result<Vec<Range>> {
    let number = |text: &str| {
        let id = Principal::from_text(text)?;
        ExecutorConfig::canister_number(&id).ok_or_else(|| anyhow::anyhow!("{text} has no number"))
    };
    let range =
        |(first, last): &(&str, &str)| Ok(Range { first: number(first)?, last: number(last)? });
    kind.public_ranges().iter().map(range).collect()
}

/// One subnet, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    /// For canisters that ask for an id.
    pub(crate) ranges: Vec<Range>,
    /// For canisters that ask for none, if that is another one.
    pub(crate) given: Option<Range>,
}

impl Plan {
    pub(crate) fn all_ranges(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().copied().chain(self.given)
    }

    /// Where it gives ids from.
    fn gives(&self) -> Option<Range> {
        self.given.or_else(|| self.ranges.first().copied())
    }

    pub(crate) fn seed(&self) -> [u8; 32] {
        let ranges: Vec<u8> = self
            .all_ranges()
            .flat_map(|range| [range.first.to_be_bytes(), range.last.to_be_bytes()].concat())
            .collect();
        seed("thimble-pocket-ranges", &[&ranges])
    }
}

/// Plans of the subnets that were asked for, named ones first.
pub(crate) fn plan(kinds: &[Kind]) -> Result<Vec<Plan>> {
    let mut plans: Vec<Plan> = Vec::new();
    if kinds.len() > SUBNETS_MAX {
        bail!("{} subnets are more than the limit subnets = {SUBNETS_MAX}", kinds.len());
    }
    for kind in kinds {
        let given = next_given(&plans)?;
        let ranges = public_ranges(*kind)?;
        plans.push(if ranges.is_empty() {
            Plan { kind: *kind, ranges: vec![given], given: None }
        } else {
            Plan { kind: *kind, ranges, given: Some(given) }
        });
    }
    Ok(plans)
}

/// The next range from the top.
fn next_given(plans: &[Plan]) -> Result<Range> {
    let taken = plans.iter().filter_map(Plan::gives).filter(|range| range.first >= FIRST_GIVEN);
    let place = u64::MAX / IDS_PER_SUBNET - 1 - taken.count() as u64;
    let first = place * IDS_PER_SUBNET;
    if first < FIRST_GIVEN {
        bail!("there are no canister ids left for another subnet");
    }
    Ok(Range { first, last: first + IDS_PER_SUBNET - 1 })
}

/// The subnet that is made for a canister id of the public network which none hosts.
fn plan_for(number: u64, plans: &[Plan]) -> Result<Plan> {
    for kind in Kind::NAMED {
        let ranges = public_ranges(kind)?;
        if ranges.iter().any(|range| range.holds(number)) {
            return Ok(Plan { kind, ranges, given: Some(next_given(plans)?) });
        }
    }
    let first = number / IDS_PER_SUBNET * IDS_PER_SUBNET;
    let range = Range { first, last: first + IDS_PER_SUBNET - 1 };
    let is_taken = plans.iter().flat_map(Plan::all_ranges).any(|other| other.meets(range));
    if range.last >= FIRST_GIVEN || is_taken {
        bail!("no subnet can be made for the canister ids around number {number}");
    }
    let given = next_given(plans)?;
    Ok(Plan { kind: Kind::Application, ranges: vec![range], given: Some(given) })
}

/// Seed of the subnet whose key certifies the state of an instance with these subnets at its
/// beginning.
pub(crate) fn root_seed(plans: &[Plan]) -> [u8; 32] {
    let root = plans.iter().find(|plan| plan.kind == Kind::Nns);
    root.or(plans.first()).map_or([0; 32], Plan::seed)
}

pub(crate) struct Subnet {
    pub(crate) plan: Plan,
    pub(crate) id: Principal,
    pub(crate) public_key_der: Vec<u8>,
    /// As many as the kind has on the public network, the one first that signs. The others are
    /// names: what they would find out, a test says.
    pub(crate) nodes: Vec<NodeInfo>,
}

impl Subnet {
    fn from_plan(plan: Plan) -> Result<Self> {
        let keys = SubnetKeys::from_seed(&plan.seed())?;
        let (id, public_key_der) = (keys.subnet_id(), keys.public_key_der());
        let nodes = (0..plan.kind.nodes()).map(|number| keys::node_info(&plan.seed(), number));
        let nodes = nodes.collect();
        Ok(Self { plan, id, public_key_der, nodes })
    }
}

/// The subnets of one instance. Shared between its thread, the executor and the endpoints.
pub(crate) struct Subnets(Mutex<SubnetTable>);

struct SubnetTable {
    all: Vec<Subnet>,
    /// Which subnet calls named that make a canister.
    aims: BTreeMap<RequestId, Principal>,
}

impl std::fmt::Debug for Subnets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.lock().all.iter().map(|subnet| &subnet.plan)).finish()
    }
}

impl Subnets {
    /// Those of the plans, of which there is at least one.
    pub(crate) fn from_plans(plans: Vec<Plan>) -> Result<Self> {
        let all = plans.into_iter().map(Subnet::from_plan).collect::<Result<Vec<_>>>()?;
        if all.is_empty() {
            bail!("an instance has at least one subnet");
        }
        Ok(Self(Mutex::new(SubnetTable { all, aims: BTreeMap::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, SubnetTable> {
        // What it guards is whole between any two statements that can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at all of them, in the order in which they came.
    pub(crate) fn with_all<T>(&self, read: impl FnOnce(&[Subnet]) -> T) -> T {
        read(&self.lock().all)
    }

    /// As they are written down.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        self.with_all(|all| all.iter().map(|subnet| subnet.plan.clone()).collect())
    }

    pub(crate) fn has(&self, id: &Principal) -> bool {
        self.with_all(|all| all.iter().any(|subnet| subnet.id == *id))
    }

    /// The effective canister id for calls of the management canister without one: the first that
    /// an application subnet gives, or else another kind of subnet.
    pub(crate) fn default_effective_id(&self) -> CanisterId {
        ExecutorConfig::canister_id(self.lock().default_range().map_or(0, |range| range.first))
    }

    /// Whether a subnet hosts the id; one is made for an id of the public network that none does.
    pub(crate) fn host(&self, id: &CanisterId) -> Result<()> {
        let Some(number) = ExecutorConfig::canister_number(id) else {
            bail!("{id} does not have the form of a canister id")
        };
        let mut known = self.lock();
        if known.of_number(number).is_some() {
            return Ok(());
        }
        if known.all.len() >= SUBNETS_MAX {
            bail!("{id} is hosted by no subnet, and the limit subnets = {SUBNETS_MAX} is reached");
        }
        let plans: Vec<_> = known.all.iter().map(|subnet| subnet.plan.clone()).collect();
        let subnet = Subnet::from_plan(plan_for(number, &plans)?)?;
        known.all.push(subnet);
        Ok(())
    }

    /// Notes that the call is to make its canister on this subnet.
    pub(crate) fn aim(&self, request: RequestId, subnet: Principal) -> Result<()> {
        let mut known = self.lock();
        if known.aims.len() >= AIMS_MAX {
            bail!("{AIMS_MAX} calls that make a canister wait, the most there may be");
        }
        known.aims.insert(request, subnet);
        Ok(())
    }

    pub(crate) fn forget(&self, request: &RequestId) {
        self.lock().aims.remove(request);
    }
}

impl SubnetTable {
    fn of_number(&self, number: u64) -> Option<&Subnet> {
        self.all.iter().find(|subnet| subnet.plan.all_ranges().any(|range| range.holds(number)))
    }

    fn default_range(&self) -> Option<Range> {
        let kinds = [Kind::Application, Kind::VerifiedApplication, Kind::System];
        let of_kind = |kind| self.all.iter().find(|subnet| subnet.plan.kind == kind);
        let subnet = kinds.into_iter().find_map(of_kind).or(self.all.first());
        subnet.and_then(|subnet| subnet.plan.gives())
    }
}

impl Placement for Subnets {
    fn subnet_of(&self, id: &CanisterId) -> Option<Principal> {
        let number = ExecutorConfig::canister_number(id)?;
        self.lock().of_number(number).map(|subnet| subnet.id)
    }

    fn is_free(&self, id: &CanisterId) -> bool {
        let Some(number) = ExecutorConfig::canister_number(id) else { return false };
        self.lock().of_number(number).is_some_and(|subnet| subnet.plan.kind.is_system())
    }

    fn is_subnet(&self, id: &Principal) -> bool {
        self.has(id)
    }

    fn fresh_id(&self, origin: &Origin, number: u64) -> Option<CanisterId> {
        let known = self.lock();
        let range = match origin {
            Origin::Ingress { request_id, .. } => known
                .aims
                .get(request_id)
                .and_then(|aim| known.all.iter().find(|subnet| subnet.id == *aim))
                .and_then(|subnet| subnet.plan.gives())
                .or_else(|| known.default_range())?,
            other => {
                let caller = ExecutorConfig::canister_number(&other.caller())?;
                known.of_number(caller)?.plan.gives()?
            }
        };
        let given = range.first.checked_add(number)?;
        range.holds(given).then(|| ExecutorConfig::canister_id(given))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id(text: &str) -> Principal {
        Principal::from_text(text).unwrap()
    }

    // Promise: P10 - Subnets have the ids of the public network.
    #[test]
    fn subnets_have_the_ids_that_clients_know() {
        let subnets = Subnets::from_plans(plan(&[Kind::Application]).unwrap()).unwrap();
        assert_eq!(subnets.default_effective_id(), id("lxzze-o7777-77777-aaaaa-cai"));
        let kinds = [Kind::Nns, Kind::Sns, Kind::Ii, Kind::Application, Kind::Application];
        let subnets = Subnets::from_plans(plan(&kinds).unwrap()).unwrap();
        let kind = |canister: &str| {
            let subnet = subnets.subnet_of(&id(canister))?;
            subnets.with_all(|all| {
                all.iter().find(|known| known.id == subnet).map(|known| known.plan.kind)
            })
        };
        assert_eq!(kind("ryjl3-tyaaa-aaaaa-aaaba-cai"), Some(Kind::Nns), "the ledger");
        assert_eq!(kind("rdmx6-jaaaa-aaaaa-aaadq-cai"), Some(Kind::Ii), "within the NNS's range");
        assert_eq!(kind("qaa6y-5yaaa-aaaaa-aaafa-cai"), Some(Kind::Nns), "behind it");
        assert_eq!(kind("lxzze-o7777-77777-aaaaa-cai"), Some(Kind::Nns), "given from the top");
        assert_eq!(kind("mf7xa-laaaa-aaaar-qaaaa-cai"), None, "there is no fiduciary subnet");
        let ids: std::collections::BTreeSet<_> =
            subnets.with_all(|all| all.iter().map(|subnet| subnet.id).collect());
        assert_eq!(ids.len(), kinds.len());
        let nodes = subnets.with_all(|all| all.iter().map(|it| it.nodes.len()).collect::<Vec<_>>());
        assert_eq!(nodes, [40, 34, 34, 13, 13]);
        let nodes: std::collections::BTreeSet<_> = subnets
            .with_all(|all| all.iter().flat_map(|it| &it.nodes).map(|node| node.node_id).collect());
        assert_eq!(nodes.len(), 134, "each has names of its own");
    }

    #[test]
    fn canisters_pay_nothing_on_system_subnets() {
        let kinds = [Kind::Nns, Kind::Sns, Kind::Ii, Kind::Fiduciary, Kind::Bitcoin];
        let subnets = Subnets::from_plans(plan(&kinds).unwrap()).unwrap();
        for (canister, is_free) in [
            ("ryjl3-tyaaa-aaaaa-aaaba-cai", true),
            ("rdmx6-jaaaa-aaaaa-aaadq-cai", true),
            ("g3wsl-eqaaa-aaaan-aaaaa-cai", true),
            ("ybpmr-kqaaa-aaaaq-aaaaa-cai", false),
            ("mf7xa-laaaa-aaaar-qaaaa-cai", false),
            ("i3flu-baaaa-aaaai-aaaaa-cai", false),
            ("aaaaa-aa", false),
        ] {
            assert_eq!(subnets.is_free(&id(canister)), is_free, "{canister}");
        }
    }

    #[test]
    fn a_subnet_is_made_for_an_id_that_none_hosts() {
        let subnets = Subnets::from_plans(plan(&[Kind::Application]).unwrap()).unwrap();
        for canister in ["rwlgt-iiaaa-aaaaa-aaaaa-cai", "i3flu-baaaa-aaaai-aaaaa-cai"] {
            assert_eq!(subnets.subnet_of(&id(canister)), None);
            subnets.host(&id(canister)).unwrap();
            assert!(subnets.subnet_of(&id(canister)).is_some());
        }
        let kinds: Vec<_> = subnets.plans().iter().map(|plan| plan.kind).collect();
        assert_eq!(kinds, [Kind::Application, Kind::Nns, Kind::Application]);
        assert!(subnets.host(&Principal::anonymous()).is_err());
    }

    #[test]
    fn a_canister_goes_where_its_call_was_aimed_or_where_its_creator_is() {
        let kinds = [Kind::Nns, Kind::Application, Kind::System];
        let subnets = Subnets::from_plans(plan(&kinds).unwrap()).unwrap();
        let system = subnets.with_all(|all| all.get(2).map(|subnet| subnet.id)).unwrap();
        let request_id = RequestId([7; 32]);
        let origin =
            Origin::Ingress { request_id, sender: Principal::anonymous(), sender_info: None };
        let at = |number| subnets.subnet_of(&subnets.fresh_id(&origin, number).unwrap()).unwrap();
        let application = subnets.with_all(|all| all.get(1).map(|subnet| subnet.id)).unwrap();
        assert_eq!(at(3), application);
        subnets.aim(request_id, system).unwrap();
        assert_eq!(at(4), system);
        subnets.forget(&request_id);
        assert_eq!(at(5), application);
        assert!(subnets.fresh_id(&origin, IDS_PER_SUBNET).is_none());
    }
}
