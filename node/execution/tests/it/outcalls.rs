//! `http_request` from the canister's call to its callback, with the answers that blocks bring.

use candid::CandidType;
use limits::Limits;
use serde_bytes::ByteBuf;
use state::{
    Askers, Batch, CanisterId, Cycles, NodeInfo, OutcallAnswer, OutcallId, OutcallMethod, Payload,
    Randomness, SignedRandomness, Time,
};

use crate::common::script::{CallOp, Op, Spec};
use crate::common::*;

#[derive(CandidType)]
struct Argument {
    url: String,
    max_response_bytes: Option<u64>,
    method: Method,
    headers: Vec<Header>,
    body: Option<ByteBuf>,
    is_replicated: Option<bool>,
}

#[derive(CandidType)]
struct Header {
    name: String,
    value: String,
}

#[derive(CandidType)]
#[allow(non_camel_case_types)]
enum Method {
    get,
    put,
}

const URL: &str = "https://a.example/";
const PRICE: Cycles = 49_140_000 + 5_200 * 18 + 10_400 * 100;

fn argument(method: Method, is_replicated: Option<bool>) -> Vec<u8> {
    candid::encode_one(Argument {
        url: URL.into(),
        max_response_bytes: Some(100),
        method,
        headers: vec![],
        body: None,
        is_replicated,
    })
    .unwrap()
}

fn member(number: u8) -> NodeInfo {
    NodeInfo { node_id: user(number), public_key_der: vec![number] }
}

/// A node whose subnet makes requests, of which `open` may be open.
fn node(open: u64) -> Node {
    let mut limits: Limits = limits();
    limits.outcalls.open = open;
    let mut config = execution::ExecutorConfig { outcalls: true, ..config(limits) };
    config.subnet.nodes = (1..=4).map(member).collect();
    Node::with_config(config, None)
}

fn aaaaa() -> CanisterId {
    CanisterId::management_canister()
}

fn request(arg: Vec<u8>, cycles: Cycles) -> Op {
    let mut call = CallOp::new(aaaaa(), &[]);
    call.method = "http_request".into();
    call.arg = arg;
    call.cycles = cycles;
    call.on_reject = vec![Op::ReplyReject];
    call.op()
}

/// Has the canister make a request, and runs a round, after which the request is open.
fn ask(node: &mut Node, canister: CanisterId, cycles: Cycles) -> state::RequestId {
    let call = node.send(canister, &[request(argument(Method::get, None), cycles)]);
    node.round();
    call
}

fn answer(node: &Node, id: u64, payload: Payload) -> OutcallAnswer {
    let open = node.executor.state().subnet.outcalls.open();
    let until = open.get(&OutcallId(id)).map_or(Time(0), |outcall| outcall.until);
    OutcallAnswer { id: OutcallId(id), until, payload }
}

fn rounds(node: &mut Node, count: usize) {
    for _ in 0..count {
        node.round();
    }
}

fn open(node: &Node) -> usize {
    node.executor.state().subnet.outcalls.open().len()
}

// Promise: P12 - A request gets exactly one answer.
#[test]
fn a_request_waits_for_its_answer_and_is_answered_once() {
    let mut node = node(10);
    let a = node.deploy(&Spec::default());
    let call = ask(&mut node, a, PRICE + 1_000);
    assert_eq!(open(&node), 1);
    let outcall = node.executor.state().subnet.outcalls.open()[&OutcallId(0)].clone();
    assert_eq!((outcall.url.as_str(), outcall.method), (URL, OutcallMethod::Get));
    assert_eq!((outcall.cycles, outcall.response_bytes_max()), (1_000, 100));
    assert_eq!(outcall.askers, Askers::All);
    let spent = node.canister(a).consumption.http_outcalls;
    assert_eq!(spent, PRICE);
    let reply = answer(&node, 0, Payload::Reply(b"first".to_vec()));
    let late = answer(&node, 0, Payload::Reply(b"second".to_vec()));
    let unknown = answer(&node, 7, Payload::Reply(b"nobody asked".to_vec()));
    node.answers = vec![unknown, reply, late];
    node.settle();
    assert_eq!(node.result(&call).unwrap(), b"first");
    assert_eq!(open(&node), 0);
    node.executor.state().check();
}

#[test]
fn mismatched_or_oversized_answers_are_ignored() {
    let mut node = node(10);
    let a = node.deploy(&Spec::default());
    let call = ask(&mut node, a, PRICE);
    let mut other = answer(&node, 0, Payload::Reply(b"other".to_vec()));
    other.until.0 += 1;
    let large = answer(&node, 0, Payload::Reply(vec![1; 1_125]));
    let mut reject = OutcallAnswer::timed_out();
    reject.error_code = state::ErrorCode(536);
    let odd = answer(&node, 0, Payload::Reject(reject.clone()));
    reject = OutcallAnswer::reject(reject.code, "x".repeat(state::OUTCALL_REJECT_BYTES_MAX + 1));
    let long = answer(&node, 0, Payload::Reject(reject));
    node.answers = vec![other, large, odd, long];
    rounds(&mut node, 2);
    assert_eq!(open(&node), 1);
    node.answers = vec![answer(&node, 0, Payload::Reply(vec![1; 1_124]))];
    node.settle();
    assert_eq!(node.result(&call).unwrap(), [1; 1_124]);
}

// Promise: P12 - A request without an answer ends at its deadline.
#[test]
fn a_request_that_nobody_answers_ends_at_its_time() {
    let mut node = node(10);
    let a = node.deploy(&Spec::default());
    let call = ask(&mut node, a, PRICE);
    let until = node.executor.state().subnet.outcalls.next_end().unwrap();
    assert_eq!(until.0, node.now() + 60 * SECOND);
    while node.now() < until.0 {
        assert_eq!(open(&node), 1);
        node.round();
    }
    node.settle();
    let told = String::from_utf8(node.result(&call).unwrap()).unwrap();
    assert_eq!(told, "2: Canister http request timed out");
}

// Promise: P12 - Open requests are bounded, and no canister has all places.
#[test]
fn no_more_requests_are_open_than_may_be_and_no_canister_has_all_places() {
    let mut node = node(4);
    let (a, b) = (node.deploy(&Spec::default()), node.deploy(&Spec::default()));
    let told = |node: &mut Node, call| String::from_utf8(node.result(&call).unwrap()).unwrap();
    ask(&mut node, a, PRICE);
    ask(&mut node, a, PRICE);
    let third = ask(&mut node, a, PRICE);
    rounds(&mut node, 3);
    let text = told(&mut node, third);
    assert!(text.starts_with("4: ") && text.contains("has 2 http requests in-flight"), "{text}");
    ask(&mut node, b, PRICE);
    assert_eq!(open(&node), 3);
    let second = ask(&mut node, b, PRICE);
    rounds(&mut node, 3);
    let text = told(&mut node, second);
    assert!(text.contains("has 1 http requests in-flight"), "{text}");
    node.answers = vec![answer(&node, 0, Payload::Reply(vec![]))];
    rounds(&mut node, 3);
    ask(&mut node, b, PRICE);
    assert_eq!(open(&node), 3);
}

#[test]
fn a_non_replicated_outcall_is_assigned_to_a_member() {
    let mut node = node(10);
    let a = node.deploy(&Spec::default());
    node.send(a, &[request(argument(Method::put, Some(false)), PRICE)]);
    node.round();
    let asked = |node: &Node| node.executor.state().subnet.outcalls.open()[&OutcallId(0)].clone();
    let batch = Batch { randomness: Randomness::NONE, ..node.batch() };
    let awaited = node.execute(batch, &[]).awaited.iter().next().unwrap();
    assert_eq!(asked(&node).askers, Askers::Unassigned, "no value was given since it was made");
    let signed = SignedRandomness { root: awaited.root, value: [7; 32] };
    let batch = Batch { randomness: Randomness::Signed(vec![signed]), ..node.batch() };
    assert!(node.execute(batch, &[]).awaited.is_empty());
    let outcall = asked(&node);
    let Askers::One(asker) = outcall.askers else { panic!("{:?}", outcall.askers) };
    assert!(node.config.subnet.nodes.iter().any(|it| it.node_id == asker), "{asker}");
    assert_eq!(outcall.method, OutcallMethod::Put);
    // All of them may not.
    let call = node.send(a, &[request(argument(Method::put, None), PRICE)]);
    rounds(&mut node, 3);
    let told = String::from_utf8(node.result(&call).unwrap()).unwrap();
    assert!(told.starts_with("4: ") && told.contains("non-replicated"), "{told}");
}

#[test]
fn open_requests_are_there_after_a_restart() {
    let mut node = node(10);
    let a = node.deploy(&Spec::default());
    let call = ask(&mut node, a, PRICE + 5);
    node.executor.checkpoint().unwrap();
    node = node.restart();
    assert_eq!(open(&node), 1);
    node.answers = vec![answer(&node, 0, Payload::Reply(b"after".to_vec()))];
    node.settle();
    assert_eq!(node.result(&call).unwrap(), b"after");
}

#[test]
fn a_canister_that_is_gone_gets_nothing_and_no_cycles_are_lost() {
    let mut node = node(10);
    let a = node.deploy(&Spec::default());
    ask(&mut node, a, PRICE + 5);
    let a_record = ic_management_canister_types::CanisterIdRecord { canister_id: a };
    node.manage(user(1), a, "uninstall_code", &a_record).unwrap();
    node.answers = vec![answer(&node, 0, Payload::Reply(vec![1; 50]))];
    rounds(&mut node, 3);
    assert_eq!(open(&node), 0);
    node.executor.state().check();
}
