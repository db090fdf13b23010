//! Stories about the query statistics in `canister_status`.

use std::sync::Arc;

use execution::{ExecutorConfig, QueryReply, QueryTally};
use ic_management_canister_types as ic;
use ic_principal::Principal;
use limits::Limits;
use state::{CanisterId, NodeInfo, QueryCounts, QueryReport, QueryRequest, QueryTotals, Reject};

use crate::common::{CallOp, Node, Op, Spec, config, encode, limits, subnet_config, user};

/// Rounds of a period.
const PERIOD: u64 = 10;

fn short_periods() -> Limits {
    let mut limits = limits();
    limits.execution.query_stats_period_rounds = PERIOD;
    limits
}

fn alone() -> ExecutorConfig {
    let mut config = config(short_periods());
    let node_id = Principal::self_authenticating([200]);
    config.subnet.nodes = vec![NodeInfo { node_id, public_key_der: vec![0; 44] }];
    config
}

/// A node that counts, and puts what it counted into its blocks.
struct Counting {
    node: Node,
    tally: Arc<QueryTally>,
}

impl Counting {
    fn new() -> Self {
        let config = alone();
        let me = config.subnet.nodes[0].node_id;
        let mut node = Node::with_config(config, None);
        let tally = node.executor.count_queries(me);
        Self { node, tally }
    }

    fn ask(&self, id: CanisterId, method: &str, program: &[Op]) -> Result<QueryReply, Reject> {
        let request = QueryRequest {
            sender: user(1),
            canister_id: id,
            method_name: method.into(),
            arg: encode(program),
            sender_info: None,
        };
        self.node.executor.queries().query(request)
    }

    fn rounds(&mut self, count: u64) {
        for _ in 0..count {
            let mut batch = self.node.batch();
            batch.queries = self.tally.report(batch.height).map(Box::new);
            self.node.execute(batch, &[]);
        }
    }

    /// Until the period that runs is over, and so are the two after.
    fn three_periods(&mut self) {
        self.rounds(3 * PERIOD - self.node.executor.height().0 % PERIOD);
    }

    fn totals(&self, id: CanisterId) -> QueryTotals {
        self.node.canister(id).query_totals
    }
}

fn totals(calls: u128, instructions: u64, request: usize, response: usize) -> QueryTotals {
    QueryTotals {
        calls,
        instructions: instructions.into(),
        request_bytes: request as u128,
        response_bytes: response as u128,
    }
}

// Promise: P9 - `query_stats` include a query after at most three periods.
#[test]
fn queries_are_in_the_totals_when_their_period_and_the_next_two_are_over() {
    let mut counting = Counting::new();
    let id = counting.node.deploy(&Spec::default());
    counting.three_periods();
    let reply = [Op::Spend(1_000), Op::Reply(vec![5; 77])];
    let program = encode(&reply);
    let first = counting.ask(id, "look", &reply).unwrap();
    assert!(first.instructions >= 1_000);
    counting.ask(id, "look", &reply).unwrap();
    counting.rounds(3 * PERIOD - 1);
    assert_eq!(counting.totals(id), QueryTotals::default(), "its period and two more");
    counting.rounds(1);
    let expected = totals(2, 2 * first.instructions, 2 * program.len(), 2 * 77);
    assert_eq!(counting.totals(id), expected);
    counting.three_periods();
    assert_eq!(counting.totals(id), expected, "nothing counts twice");
    counting.ask(id, "look", &reply).unwrap();
    counting.three_periods();
    let status: ic::QueryStats = counting.node.status_of(id).query_stats;
    assert_eq!(status.num_calls_total, 3u8);
    assert_eq!(status.num_instructions_total, 3 * first.instructions);
    assert_eq!(status.request_payload_bytes_total, 3 * program.len());
    assert_eq!(status.response_payload_bytes_total, 3 * 77u8);
}

#[test]
fn rejects_and_traps_count_with_their_message_and_what_is_not_evaluated_does_not_count() {
    let mut counting = Counting::new();
    let id = counting.node.deploy(&Spec::default());
    let asked = [[Op::Reject("no, thanks".into())], [Op::Trap("trapped".into())]];
    let rejects = asked.each_ref().map(|program| counting.ask(id, "look", program).unwrap_err());
    let request: usize = asked.iter().map(|program| encode(program).len()).sum();
    let response: usize = rejects.iter().map(|reject| reject.message.len()).sum();
    assert!(rejects[0].message.contains("no, thanks"));
    // No query, no such method, no such canister, and queries of the management canister.
    for method in ["run", "none"] {
        counting.ask(id, method, &[Op::Reply(vec![])]).unwrap_err();
    }
    counting.ask(ExecutorConfig::canister_id(9), "look", &[]).unwrap_err();
    counting.ask(Principal::management_canister(), "canister_status", &[]).unwrap_err();
    counting.three_periods();
    let found = counting.totals(id);
    assert_eq!((found.calls, found.request_bytes), (2, request as u128));
    assert_eq!(found.response_bytes, response as u128);
    assert!(found.instructions > 0);
    // A query method that is called as an update is one.
    let arg = encode(&[Op::Reply(vec![])]);
    counting.node.update(id, "look", arg).unwrap();
    counting.three_periods();
    assert_eq!(counting.totals(id).calls, 2);
}

#[test]
fn what_a_composite_query_calls_counts_for_the_canister_that_is_called() {
    let mut counting = Counting::new();
    let deployed = [0; 2].map(|_| counting.node.deploy(&Spec::default()));
    let [one, two] = deployed;
    let inner = [Op::Spend(5_000), Op::Reply(vec![3; 40])];
    let mut call = CallOp::new(two, &inner);
    call.method = "look".into();
    call.on_reply = vec![Op::Spend(7_000), Op::Reply(vec![4; 9])];
    let outer = [Op::Spend(300_000), call.op()];
    let reply = counting.ask(one, "compose", &outer).unwrap();
    counting.three_periods();
    let (of_one, of_two) = (counting.totals(one), counting.totals(two));
    assert_eq!((of_one.calls, of_one.request_bytes), (1, encode(&outer).len() as u128));
    assert_eq!(of_one.response_bytes, 9);
    assert_eq!((of_two.calls, of_two.response_bytes), (1, 40));
    assert_eq!(of_two.request_bytes, encode(&inner).len() as u128);
    assert!((5_000..300_000).contains(&of_two.instructions), "{of_two:?}");
    assert!(of_one.instructions >= 307_000, "its callback's too: {of_one:?}");
    assert_eq!(of_one.instructions + of_two.instructions, u128::from(reply.instructions));
}

#[test]
fn uninstalling_keeps_the_totals_and_deletion_takes_them() {
    let mut counting = Counting::new();
    let id = counting.node.deploy(&Spec::default());
    counting.ask(id, "look", &[Op::Reply(vec![])]).unwrap();
    counting.three_periods();
    let found = counting.totals(id);
    assert_eq!(found.calls, 1);
    let record = ic::CanisterIdRecord { canister_id: id };
    let uninstall = ic::UninstallCodeArgs { canister_id: id, sender_canister_version: None };
    counting.node.manage(user(1), id, "uninstall_code", &uninstall).unwrap();
    assert_eq!(counting.totals(id), found);
    counting.node.install(id, ic::CanisterInstallMode::Install, &Spec::default()).unwrap();
    counting.ask(id, "look", &[Op::Reply(vec![])]).unwrap();
    for method in ["stop_canister", "delete_canister"] {
        counting.node.manage(user(1), id, method, &record).unwrap();
    }
    // Its last query is reported of a canister that is gone.
    counting.three_periods();
    assert!(counting.node.executor.state().get(&id).is_none());
    assert!(counting.node.executor.state().subnet.query_reports == reports_of_nothing(&counting));
}

/// The expected state if no member reported anything in the current period.
fn reports_of_nothing(counting: &Counting) -> state::QueryReports {
    let mut reports = state::QueryReports::default();
    reports.begin(counting.node.executor.height().0 / PERIOD, &[]);
    reports
}

#[test]
fn executing_the_same_blocks_again_gives_the_same_totals_and_a_restart_keeps_them() {
    let mut counting = Counting::new();
    let id = counting.node.deploy(&Spec::default());
    for bytes in 0..30 {
        counting.ask(id, "look", &[Op::Reply(vec![0; bytes])]).unwrap();
        counting.rounds(1);
    }
    counting.three_periods();
    let found = counting.totals(id);
    assert_eq!(found.calls, 30);
    assert_eq!(found.response_bytes, (0..30).sum::<u128>());
    // A member that counted nothing, and one that restarts from a checkpoint within a period.
    let mut other = Node::with_config(alone(), None);
    for (at, (batch, _, root)) in counting.node.log.clone().into_iter().enumerate() {
        assert_eq!(other.execute(batch, &[]).root, root);
        if at % 7 == 3 {
            other.executor.checkpoint().unwrap();
            other = other.restart();
        }
    }
    assert_eq!(other.canister(id).query_totals, found);
    assert_eq!(
        other.executor.state().subnet.query_reports,
        counting.node.executor.state().subnet.query_reports
    );
}

fn counts(calls: u64) -> QueryCounts {
    QueryCounts { calls, instructions: 9 * calls, request_bytes: 2 * calls, response_bytes: calls }
}

// Promise: P9 - Of `3f+1` members, `f` faulty ones inflate totals to at most `f` times an honest
//   report.
#[test]
fn one_faulty_member_of_four_cannot_inflate_totals() {
    let config = subnet_config(short_periods());
    let nodes: Vec<_> = config.subnet.nodes.iter().map(|node| node.node_id).collect();
    let mut members = [(); 2].map(|()| Node::with_config(config.clone(), None));
    let [first, _] = &mut members;
    let (one, two) = (first.deploy(&Spec::default()), first.deploy(&Spec::default()));
    let log = first.log.clone();
    log.into_iter().for_each(|(batch, _, _)| drop(members[1].execute(batch, &[])));
    let mut reported = [
        (nodes[0], vec![(one, counts(10)), (two, counts(3))]),
        (nodes[1], vec![(one, counts(12))]),
        (nodes[2], vec![(one, counts(11))]),
        // Arbitrary figures, of canisters that exist and of one that does not.
        (nodes[3], vec![(one, counts(u64::MAX / 9)), (two, counts(1 << 50))]),
        (nodes[3], vec![(ExecutorConfig::canister_id(9_999), counts(5))]),
        // A second report does not count, whatever its content, nor does one of a non-member.
        (nodes[0], vec![(one, counts(1_000))]),
        (user(3), vec![(one, counts(1_000))]),
    ]
    .map(|(node, canisters)| QueryReport { node, canisters })
    .into_iter();
    while members[0].executor.height().0 % PERIOD != PERIOD - 1 {
        both(&mut members, None);
    }
    for _ in 0..2 * PERIOD + 1 {
        let report = reported.next();
        both(&mut members, report);
    }
    assert_eq!(reported.next(), None);
    for member in &members {
        let of = |id| member.canister(id).query_totals;
        assert_eq!(of(one).calls, 10 + 11 + 12 + 12);
        assert_eq!((of(one).instructions, of(one).request_bytes), (9 * 45, 2 * 45));
        assert_eq!(of(two).calls, 3 + 3);
    }
}

/// The same batch on both, with the same result.
fn both(members: &mut [Node; 2], report: Option<QueryReport>) {
    let mut batch = members[0].batch();
    batch.queries = report.map(Box::new);
    let roots = members.each_mut().map(|member| member.execute(batch.clone(), &[]).root);
    assert_eq!(roots[0], roots[1]);
}
