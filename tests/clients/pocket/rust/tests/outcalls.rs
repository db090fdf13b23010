//! HTTPS outcalls with the published `pocket-ic`: listed, answered, timed out, and made while an
//! instance is live. `POCKET_ASKER` names the module of a canister whose `relay` passes its
//! argument to `http_request`, and the result to the caller.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    time::Duration,
};

use candid::{Encode, Func, Nat, Principal};
use ic_management_canister_types::{
    HttpHeader, HttpMethod, HttpRequestArgs, HttpRequestResult, TransformContext,
};
use pocket_ic::{
    PocketIc, PocketIcBuilder, RejectCode,
    common::rest::{
        CanisterHttpHeader, CanisterHttpMethod, CanisterHttpPricingVersion, CanisterHttpReject,
        CanisterHttpReplication, CanisterHttpReply, CanisterHttpRequest, CanisterHttpResponse,
        MockCanisterHttpResponse, RawMessageId,
    },
};

fn get(url: &str) -> HttpRequestArgs {
    HttpRequestArgs {
        url: url.to_owned(),
        max_response_bytes: Some(1_000),
        method: HttpMethod::GET,
        headers: vec![],
        body: None,
        transform: None,
        is_replicated: None,
    }
}

fn asker(pic: &PocketIc, subnet: Option<Principal>) -> Principal {
    let module = std::env::var("POCKET_ASKER").expect("POCKET_ASKER names the module");
    let canister = match subnet {
        Some(subnet) => pic.create_canister_on_subnet(None, None, subnet),
        None => pic.create_canister(),
    };
    pic.add_cycles(canister, 2_000_000_000_000);
    pic.install_canister(canister, std::fs::read(module).expect("a module"), vec![], None);
    canister
}

/// Has the canister ask; the call, and what waits for an answer.
fn begin(
    pic: &PocketIc,
    asker: Principal,
    request: &HttpRequestArgs,
) -> (RawMessageId, CanisterHttpRequest) {
    let arg = Encode!(request).unwrap();
    let call = pic.submit_call(asker, Principal::anonymous(), "relay", arg).unwrap();
    pic.tick();
    pic.tick();
    let mut pending = pic.get_canister_http();
    assert_eq!(pending.len(), 1, "{pending:?}");
    (call, pending.remove(0))
}

fn reply(body: &str) -> CanisterHttpResponse {
    let body = body.as_bytes().to_vec();
    CanisterHttpResponse::CanisterHttpReply(CanisterHttpReply {
        status: 200,
        headers: vec![],
        body,
    })
}

fn mock(
    pending: &CanisterHttpRequest,
    response: CanisterHttpResponse,
    others: Vec<CanisterHttpResponse>,
) -> MockCanisterHttpResponse {
    MockCanisterHttpResponse {
        subnet_id: pending.subnet_id,
        request_id: pending.request_id,
        response,
        additional_responses: others,
    }
}

fn response(pic: &PocketIc, call: RawMessageId) -> HttpRequestResult {
    candid::decode_one(&pic.await_call(call).expect("a response")).unwrap()
}

#[test]
fn an_outcall_is_listed_and_answered() {
    let pic = PocketIc::new();
    let asker = asker(&pic, None);
    let request = HttpRequestArgs {
        method: HttpMethod::POST,
        headers: vec![HttpHeader { name: "X-Name".into(), value: "value".into() }],
        body: Some(vec![1, 2, 3]),
        ..get("https://a.example/path?query")
    };
    let (call, pending) = begin(&pic, asker, &request);
    let subnet = pic.topology().get_app_subnets()[0];
    assert_eq!(
        pending,
        CanisterHttpRequest {
            subnet_id: subnet,
            request_id: 0,
            http_method: CanisterHttpMethod::POST,
            url: "https://a.example/path?query".into(),
            headers: vec![CanisterHttpHeader { name: "X-Name".into(), value: "value".into() }],
            body: vec![1, 2, 3],
            max_response_bytes: Some(1_000),
            replication: CanisterHttpReplication::FullyReplicated,
            pricing_version: CanisterHttpPricingVersion::Legacy,
        }
    );
    pic.mock_canister_http_response(mock(&pending, reply("hello"), vec![]));
    assert!(pic.get_canister_http().is_empty());
    let got = response(&pic, call);
    assert_eq!((got.status, got.body), (Nat::from(200_u32), b"hello".to_vec()));

    let alone = HttpRequestArgs {
        is_replicated: Some(false),
        max_response_bytes: None,
        ..get("https://a/")
    };
    let (call, pending) = begin(&pic, asker, &alone);
    assert_eq!(pending.replication, CanisterHttpReplication::NonReplicated);
    assert_eq!(pending.max_response_bytes, None);
    pic.mock_canister_http_response(mock(&pending, reply("alone"), vec![]));
    assert_eq!(response(&pic, call).body, b"alone");
}

#[test]
fn a_transform_and_rejects_are_the_canisters() {
    let pic = PocketIc::new();
    let asker = asker(&pic, None);
    let function = Func { principal: asker, method: "fixed".into() }.into();
    let transform = Some(TransformContext { function, context: vec![] });
    let (call, pending) =
        begin(&pic, asker, &HttpRequestArgs { transform, ..get("https://a.example/") });
    pic.mock_canister_http_response(mock(&pending, reply("something"), vec![]));
    assert_eq!(response(&pic, call).body, b"same");
    for (response, words) in [
        (
            CanisterHttpResponse::CanisterHttpReject(CanisterHttpReject {
                reject_code: RejectCode::SysTransient as u64,
                message: "nobody is there".into(),
            }),
            "nobody is there",
        ),
        (reply(&"x".repeat(1_001)), "Http body exceeds size limit of 1000 bytes."),
    ] {
        let (call, pending) = begin(&pic, asker, &get("https://a.example/"));
        pic.mock_canister_http_response(mock(&pending, response, vec![]));
        let rejected = pic.await_call(call).unwrap_err();
        assert_eq!(rejected.reject_code, RejectCode::CanisterReject);
        assert!(rejected.reject_message.contains(words), "{rejected:?}");
    }
}

#[test]
fn nodes_of_every_subnet_agree_or_do_not() {
    let pic = PocketIcBuilder::new().with_nns_subnet().with_application_subnet().build();
    let topology = pic.topology();
    for (subnet, nodes) in [(topology.get_nns().unwrap(), 40), (topology.get_app_subnets()[0], 13)]
    {
        let asker = asker(&pic, Some(subnet));
        let (call, pending) = begin(&pic, asker, &get("https://a.example/"));
        assert_eq!(pending.subnet_id, subnet);
        let others = vec![reply("same"); nodes - 1];
        pic.mock_canister_http_response(mock(&pending, reply("other"), others));
        assert_eq!(response(&pic, call).body, b"same");
        let (call, pending) = begin(&pic, asker, &get("https://a.example/"));
        let others = (1..nodes).map(|node| reply(&node.to_string())).collect();
        pic.mock_canister_http_response(mock(&pending, reply("0"), others));
        let rejected = pic.await_call(call).unwrap_err();
        assert!(
            rejected.reject_message.starts_with("No consensus could be reached."),
            "{rejected:?}"
        );
    }
}

#[test]
fn an_outcall_times_out_by_the_instances_time() {
    let pic = PocketIc::new();
    let asker = asker(&pic, None);
    let (call, _) = begin(&pic, asker, &get("https://a.example/"));
    pic.advance_time(Duration::from_secs(61));
    pic.tick();
    assert!(pic.get_canister_http().is_empty());
    let rejected = pic.await_call(call).unwrap_err();
    assert!(rejected.reject_message.contains("Canister http request timed out"), "{rejected:?}");
}

#[test]
#[should_panic(expected = "InvalidCanisterHttpRequestId")]
fn an_outcall_is_answered_once() {
    let pic = PocketIc::new();
    let asker = asker(&pic, None);
    let (_, pending) = begin(&pic, asker, &get("https://a.example/"));
    pic.mock_canister_http_response(mock(&pending, reply("one"), vec![]));
    pic.mock_canister_http_response(mock(&pending, reply("two"), vec![]));
}

#[test]
#[should_panic(expected = "InvalidMockCanisterHttpResponses((2, 13))")]
fn a_response_of_each_node_is_one_of_each() {
    let pic = PocketIc::new();
    let asker = asker(&pic, None);
    let (_, pending) = begin(&pic, asker, &get("https://a.example/"));
    pic.mock_canister_http_response(mock(&pending, reply("one"), vec![reply("one")]));
}

#[test]
fn a_live_instance_asks_a_server_on_this_machine() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nreal").unwrap();
        String::from_utf8(head).unwrap()
    });
    let mut pic = PocketIc::new();
    let asker = asker(&pic, None);
    pic.make_live(None);
    let arg = Encode!(&get(&format!("http://127.0.0.1:{port}/path"))).unwrap();
    let call = pic.submit_call(asker, Principal::anonymous(), "relay", arg).unwrap();
    let reply = pic.await_call_no_ticks(call).unwrap();
    assert_eq!(candid::decode_one::<HttpRequestResult>(&reply).unwrap().body, b"real");
    let head = server.join().unwrap();
    assert!(head.starts_with("GET /path HTTP/1.1"), "{head}");
}
