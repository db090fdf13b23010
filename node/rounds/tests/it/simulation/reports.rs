//! Reports of queries in the blocks of simulated nodes: made up, because the nodes receive no
//! queries, and one node's in another's name.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use consensus::CountedQueries;
use ic_principal::Principal;
use state::{Height, QueryCounts, QueryReport};

use crate::simulation::real;

/// An ID of no canister, which a node reports in another's name.
const LIE: [u8; 1] = [0x11];

/// Whether a node reports in another's name, and how often it did.
#[derive(Default)]
pub(crate) struct FalseReports {
    pub(crate) on: AtomicBool,
    pub(crate) made: AtomicU64,
}

/// See the module.
pub(crate) struct Reports {
    pub(crate) node: Principal,
    pub(crate) other: Principal,
    pub(crate) lies: Arc<FalseReports>,
}

impl CountedQueries for Reports {
    /// Of every canister, in two of three blocks; the first of a period that this node makes
    /// counts.
    fn report(&self, height: Height) -> Option<QueryReport> {
        let calls = 100 + height.0;
        let counts =
            QueryCounts { calls, instructions: 7 * calls, request_bytes: 3, response_bytes: 5 };
        if self.lies.on.load(Ordering::Relaxed) && height.0.is_multiple_of(3) {
            self.lies.made.fetch_add(1, Ordering::Relaxed);
            let canisters = vec![(Principal::from_slice(&LIE), counts)];
            return Some(QueryReport { node: self.other, canisters });
        }
        let canisters = (0..real::CANISTERS).map(|number| (real::canister(number), counts));
        (!height.0.is_multiple_of(3))
            .then(|| QueryReport { node: self.node, canisters: canisters.collect() })
    }
}

/// Whether no honest member votes for it.
pub(crate) fn is_lie(report: &QueryReport) -> bool {
    report.canisters.iter().any(|(canister, _)| canister.as_slice() == LIE)
}
