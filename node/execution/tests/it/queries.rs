//! Stories about queries and about the check before a call is taken in.

use execution::QueryReply;
use ic_management_canister_types as ic;
use ic_principal::Principal;
use state::{Ingress, QueryRequest, Reject, RequestId, Time};

use crate::common::{self, CallOp, Node, Op, Spec, decode, encode, user};

fn ask(node: &Node, id: Principal, method: &str, arg: Vec<u8>) -> Result<QueryReply, Reject> {
    let request = QueryRequest {
        sender: user(1),
        canister_id: id,
        method_name: method.into(),
        arg,
        sender_info: None,
    };
    node.executor.queries().query(request)
}

fn composite(callee: Principal, method: &str, program: &[Op]) -> CallOp {
    let mut call = CallOp::new(callee, program);
    call.method = method.into();
    call
}

#[test]
fn a_query_sees_the_certified_state_and_leaves_no_trace() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    node.call(id, &[Op::Note(b"seen".to_vec()), Op::Reply(vec![])]).unwrap();
    let notes = |reply: QueryReply| postcard::from_bytes::<Vec<Vec<u8>>>(&reply.bytes).unwrap();
    assert_eq!(
        notes(ask(&node, id, "look", encode(&[Op::Note(b"no".to_vec()), Op::ReplyNotes])).unwrap())
            .len(),
        2
    );
    assert_eq!(
        notes(ask(&node, id, "look", encode(&[Op::ReplyNotes])).unwrap()),
        [b"seen".to_vec()]
    );
    assert_eq!(ask(&node, id, "run", encode(&[Op::ReplyNotes])).unwrap_err().error_code.0, 536);
    assert_eq!(
        ask(&node, id, "look", encode(&[Op::Trap("t".into())])).unwrap_err().error_code.0,
        503
    );
    assert_eq!(ask(&node, id, "look", encode(&[])).unwrap_err().error_code.0, 506);
    let nobody = execution::ExecutorConfig::canister_id(9);
    assert_eq!(ask(&node, nobody, "look", vec![]).unwrap_err().error_code.0, 301);
    let before = node.executor.root();
    node.round();
    assert_ne!(node.executor.root(), before, "only time moved on");
}

// Promise: P1 - A query writes at most the memory that is reserved for it.
#[test]
fn query_writes_no_more_than_is_reserved_for_it() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let limits = limits::Limits::nano().unwrap().execution;
    let (query, message) =
        (limits.stable_dirty_bytes_per_query, limits.stable_dirty_bytes_per_message);
    assert!(query < message);
    node.call(id, &[Op::Grow(message / 65_536), Op::Reply(vec![])]).unwrap();
    let dirty = |bytes: u64| [Op::Dirty(bytes / 4_096), Op::Reply(vec![])];
    ask(&node, id, "look", encode(&dirty(query))).unwrap();
    let refused = ask(&node, id, "look", encode(&dirty(query + 4_096))).unwrap_err();
    assert_eq!(refused.error_code.0, 524, "{refused:?}");
    node.call(id, &dirty(query + 4_096)).unwrap();
}

#[test]
fn the_certificate_shows_the_certified_data() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    node.call(id, &[Op::Certify(b"root hash".to_vec()), Op::Reply(vec![])]).unwrap();
    let bytes = ask(&node, id, "look", encode(&[Op::ReplyCertificate])).unwrap().bytes;
    let latest = node.executor.reader().latest().unwrap();
    assert_eq!(
        bytes,
        latest.certificate(&[vec![
            b"canister".to_vec(),
            id.as_slice().to_vec(),
            b"certified_data".to_vec()
        ]])
    );
    assert!(bytes.windows(9).any(|window| window == b"root hash"));
    // Not in a nested call.
    let other = node.deploy(&Spec::default());
    let nested = composite(id, "look", &[Op::ReplyCertificate]);
    assert_eq!(ask(&node, other, "compose", encode(&[nested.op()])).unwrap().bytes, b"");
}

#[test]
fn composite_queries_call_and_keep_what_they_remember_until_they_answer() {
    let mut node = Node::new();
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let mut call = composite(b, "look", &[Op::Reply(b"from b".to_vec())]);
    call.on_reply = vec![Op::NoteArgument];
    let mut last = composite(a, "look", &[Op::Reply(b"from a".to_vec())]);
    last.on_reply = vec![Op::NoteArgument, Op::ReplyNotes];
    let program = encode(&[Op::Note(b"start".to_vec()), call.op(), last.op()]);
    let notes: Vec<Vec<u8>> =
        postcard::from_bytes(&ask(&node, a, "compose", program.clone()).unwrap().bytes).unwrap();
    assert_eq!(notes, [b"start".to_vec(), b"from b".to_vec(), b"from a".to_vec()]);
    assert!(node.notes(a).is_empty());
    assert_eq!(node.sandbox.kept(), 0);
    // Not in replicated mode.
    let request = node.ingress(user(1), a, a, "compose", program);
    node.settle();
    assert_eq!(node.result(&request).unwrap_err().error_code.0, 527);
}

#[test]
fn nesting_is_bounded() {
    let mut node = Node::new();
    let id = node.deploy(&Spec::default());
    let nested = |depth: u64| {
        let mut program = vec![Op::Reply(b"deep".to_vec())];
        for _ in 0..depth {
            let mut call = composite(id, "compose", &program);
            call.on_reject = vec![Op::Reply(b"too deep".to_vec())];
            program = vec![call.op()];
        }
        encode(&program)
    };
    let depth = node.config.limits.execution.composite_query_depth;
    assert_eq!(ask(&node, id, "compose", nested(depth)).unwrap().bytes, b"deep");
    // A caller that nests too deeply gets an error, and may answer.
    assert_eq!(ask(&node, id, "compose", nested(depth + 1)).unwrap().bytes, b"too deep");
    assert_eq!(node.sandbox.kept(), 0);
    let mut hungry = composite(id, "look", &[Op::Spend(4_900_000_000), Op::Reply(vec![])]);
    hungry.on_reply = vec![];
    hungry.on_reject = vec![];
    let program = encode(&[hungry.clone().op(), hungry.clone().op(), hungry.op()]);
    assert!(matches!(ask(&node, id, "compose", program).unwrap_err().error_code.0, 522 | 526));
}

#[test]
fn the_management_canister_answers_some_queries() {
    let mut node = Node::new();
    let id = node.deploy(&Spec { init: vec![Op::Print(b"born".to_vec())], ..Spec::default() });
    node.round();
    let aaaaa = Principal::management_canister();
    let record = candid::encode_one(ic::CanisterIdRecord { canister_id: id }).unwrap();
    let status: ic::CanisterStatusResult =
        decode(&ask(&node, aaaaa, "canister_status", record.clone()).unwrap().bytes);
    assert!(status.cycles > 0u8);
    let fetch =
        candid::encode_one(ic::FetchCanisterLogsArgs { canister_id: id, filter: None }).unwrap();
    let logs: ic::FetchCanisterLogsResult =
        decode(&ask(&node, aaaaa, "fetch_canister_logs", fetch).unwrap().bytes);
    assert_eq!(logs.canister_log_records[0].content, b"born");
    assert_eq!(ask(&node, aaaaa, "start_canister", record).unwrap_err().error_code.0, 536);
    assert!(ask(&node, aaaaa, "list_canisters", vec![]).is_err());
}

#[test]
fn calls_are_checked_before_they_are_taken_in() {
    let mut node = Node::new();
    let id = node.deploy(&Spec { inspect: Some(true), ..Spec::default() });
    let (empty, plain) = (node.create(), node.deploy(&Spec::default()));
    let ingress =
        |canister_id: Principal, effective: Principal, method: &str, arg: Vec<u8>, sender: u8| {
            Ingress {
                request_id: RequestId([9; 32]),
                sender: user(sender),
                canister_id,
                effective_canister_id: effective,
                method_name: method.into(),
                arg,
                ingress_expiry: Time(node.now() + common::SECOND),
                sender_info: None,
            }
        };
    let queries = node.executor.queries();
    let aaaaa = Principal::management_canister();
    queries.inspect(&ingress(id, id, "run", vec![], 1)).unwrap();
    assert_eq!(
        queries.inspect(&ingress(id, id, "secret", vec![], 1)).unwrap_err().error_code.0,
        406
    );
    assert_eq!(
        queries.inspect(&ingress(empty, empty, "run", vec![], 1)).unwrap_err().error_code.0,
        537
    );
    let record = candid::encode_one(ic::CanisterIdRecord { canister_id: id }).unwrap();
    queries.inspect(&ingress(aaaaa, id, "stop_canister", record.clone(), 1)).unwrap();
    assert_eq!(
        queries
            .inspect(&ingress(aaaaa, id, "stop_canister", record.clone(), 2))
            .unwrap_err()
            .error_code
            .0,
        512
    );
    assert_eq!(
        queries
            .inspect(&ingress(aaaaa, empty, "stop_canister", record, 1))
            .unwrap_err()
            .error_code
            .0,
        408
    );
    assert_eq!(
        queries.inspect(&ingress(aaaaa, id, "raw_rand", vec![], 1)).unwrap_err().error_code.0,
        406
    );
    // A query that needs no code of the canister has the same outcome without a worker.
    assert_eq!(queries.inspect_without_code(&ingress(id, id, "run", vec![], 1)), None);
    for call in [
        ingress(plain, plain, "run", vec![], 1),
        ingress(empty, empty, "run", vec![], 1),
        ingress(aaaaa, id, "stop_canister", vec![], 1),
        ingress(aaaaa, id, "raw_rand", vec![], 1),
    ] {
        assert_eq!(queries.inspect_without_code(&call), Some(queries.inspect(&call)));
    }
}
