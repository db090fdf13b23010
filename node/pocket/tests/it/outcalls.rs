//! HTTPS outcalls that a test answers, and those that are made while an instance is live.

use std::{
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use candid::Principal;
use ic_management_canister_types::{HttpRequestResult, TransformArgs};
use reqwest::StatusCode;
use serde_bytes::ByteBuf;
use serde_json::{Value, json};

use crate::{
    asker::{ATTACHED, Got, Method, Request, module},
    harness::*,
};

const URL: &str = "https://a.example/";

/// An instance with a canister that asks.
struct Asking {
    server: Server,
    instance: u64,
    /// Bytes of the id of the subnet, in base64.
    subnet: Value,
}

fn first() -> Principal {
    Principal::from_slice(&FIRST)
}

/// Ids of the subnets of an instance that was created, in base64, in the order of their canister
/// ids.
fn subnets(created: &Value) -> Vec<Value> {
    let configs = created["Created"]["topology"]["subnet_configs"].as_object().unwrap();
    let mut subnets: Vec<_> = configs
        .iter()
        .map(|(id, config)| {
            let first = unbase64(&config["canister_ranges"][0]["start"]["canister_id"]);
            (first, base64(Principal::from_text(id).unwrap().as_slice()))
        })
        .collect();
    subnets.sort_by(|one, other| one.0.cmp(&other.0));
    subnets.into_iter().map(|(_, subnet)| subnet).collect()
}

fn replied(body: &[u8]) -> Value {
    json!({"CanisterHttpReply": {"status": 200, "headers": [], "body": base64(body)}})
}

fn rejected(code: u64, message: &str) -> Value {
    json!({"CanisterHttpReject": {"reject_code": code, "message": message}})
}

impl Asking {
    async fn with(config: &Value) -> Self {
        let server = Server::start(&[]);
        Self::on(server, config).await
    }

    async fn on(server: Server, config: &Value) -> Self {
        let created = server.ok("/instances", config).await;
        let instance = created["Created"]["instance_id"].as_u64().unwrap();
        let subnet = subnets(&created).remove(0);
        Self { server, instance, subnet }
    }

    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(arguments: &[&str]) -> Self {
        let asking = Self::on(Server::start(arguments), &one_subnet()).await;
        asking.server.deploy(asking.instance, &module()).await;
        asking
    }

    fn at(&self, path: &str) -> String {
        format!("/instances/{}/{path}", self.instance)
    }

    async fn tick(&self) {
        self.server.ok(&self.at("update/tick"), &json!({})).await;
    }

    /// Has the canister ask; the call, when the request is open.
    async fn begin(&self, request: &Request) -> Value {
        let call = call(&FIRST, "ask", &request.encoded());
        let submitted = self.server.ok(&self.at("update/submit_ingress_message"), &call).await;
        self.tick().await;
        self.tick().await;
        submitted["Ok"].clone()
    }

    async fn end(&self, call: &Value) -> Got {
        let answer = self.server.ok(&self.at("update/await_ingress_message"), call).await;
        Got::read(&unbase64(&answer["Ok"]))
    }

    async fn pending(&self) -> Vec<Value> {
        let (status, pending) = self.server.get(&self.at("read/get_canister_http")).await;
        assert_eq!(status, StatusCode::OK, "{pending}");
        pending.as_array().unwrap().clone()
    }

    /// The number of the only request that waits.
    async fn number(&self) -> u64 {
        let pending = self.pending().await;
        assert_eq!(pending.len(), 1, "{pending:?}");
        pending[0]["request_id"].as_u64().unwrap()
    }

    fn mock(&self, id: u64, response: &Value, others: &[Value]) -> Value {
        json!({
            "subnet_id": {"subnet_id": self.subnet}, "request_id": id,
            "response": response, "additional_responses": others,
        })
    }

    async fn answer(&self, id: u64, response: &Value, others: &[Value]) {
        let mock = self.mock(id, response, others);
        self.server.ok(&self.at("update/mock_canister_http"), &mock).await;
    }

    async fn refusal(&self, mock: &Value) -> String {
        self.server.refusal(&self.at("update/mock_canister_http"), mock).await
    }

    /// What a canister gets that asks this and is answered so.
    async fn got(&self, request: &Request, response: &Value, others: &[Value]) -> Got {
        let call = self.begin(request).await;
        self.answer(self.number().await, response, others).await;
        self.end(&call).await
    }

    async fn advance(&self, seconds: u64) {
        let (_, now) = self.server.get(&self.at("read/get_time")).await;
        let then = now["nanos_since_epoch"].as_u64().unwrap() + seconds * 1_000_000_000;
        let then = json!({ "nanos_since_epoch": then });
        self.server.ok(&self.at("update/set_time"), &then).await;
    }
}

// Promise: P12 - `thimble-pocket` lists open outcalls, and each is answered once.
#[tokio::test]
async fn a_request_is_listed_with_all_that_it_says_and_answered_once() {
    let asking = Asking::start().await;
    assert_eq!(asking.pending().await, Vec::<Value>::new());
    let mut request = Request::get(URL).header("X-Name", "a \"value\"\u{1}");
    request.method = Method::post;
    request.body = Some(ByteBuf::from([0, 255, 7]));
    let asked = asking.begin(&request).await;
    let listed = json!([{
        "subnet_id": {"subnet_id": asking.subnet}, "request_id": 0, "http_method": "POST",
        "url": URL, "headers": [{"name": "X-Name", "value": "a \"value\"\u{1}"}],
        "body": base64(&[0, 255, 7]), "max_response_bytes": 3_000,
        "replication": "FullyReplicated", "pricing_version": "Legacy",
    }]);
    assert_eq!(json!(asking.pending().await), listed);
    let response = json!({"CanisterHttpReply": {
        "status": 404, "headers": [{"name": "Server", "value": "none"}], "body": base64(b"gone"),
    }});
    asking.answer(0, &response, &[]).await;
    // It waits for a round, and is answered.
    assert_eq!(asking.pending().await, Vec::<Value>::new());
    let again = asking.refusal(&asking.mock(0, &replied(b"other"), &[])).await;
    assert!(again.starts_with("InvalidCanisterHttpRequestId(("), "{again}");
    let got = asking.end(&asked).await;
    let response = got.response();
    assert_eq!((response.status, response.body), (404_u32.into(), b"gone".to_vec()));
    assert_eq!((&*response.headers[0].name, &*response.headers[0].value), ("Server", "none"));
    let price = 49_140_000 + 5_200 * (18 + 6 + 10 + 3) + 10_400 * 3_000;
    assert_eq!(got.refunded, u128::from(ATTACHED) - price, "the price of a node");
    let late = asking.refusal(&asking.mock(0, &replied(b"late"), &[])).await;
    assert!(late.starts_with("InvalidCanisterHttpRequestId(("), "{late}");

    let request = Request { max_response_bytes: None, ..Request::get(URL) };
    let request = Request { method: Method::put, is_replicated: Some(false), ..request };
    asking.begin(&request).await;
    let pending = asking.pending().await;
    let told = ["request_id", "http_method", "body", "max_response_bytes", "replication"];
    assert_eq!(
        told.map(|name| pending[0][name].clone()),
        [json!(1), json!("PUT"), json!(""), Value::Null, json!("NonReplicated")]
    );
}

// Promise: P12 - A mocked response passes the transform and the bounds of a node.
#[tokio::test]
async fn a_response_goes_through_the_transform_within_the_bounds_of_a_node() {
    let asking = Asking::start().await;
    let transformed = |method: &str| Request::get(URL).transformed(first(), method);
    let got = asking.got(&transformed("fixed"), &replied(b"said"), &[]).await;
    assert_eq!(got.response().body, b"same");
    // The transform is asked by the management canister, with the response and the context.
    let got = asking.got(&transformed("echo"), &replied(b"said"), &[]).await;
    let told = got.result.unwrap();
    assert_eq!(told[0], 0, "bytes of the caller");
    let args: TransformArgs = candid::decode_one(&told[1..]).unwrap();
    assert_eq!((args.response.body, args.context), (b"said".to_vec(), b"context".to_vec()));
    let header = |bytes: usize| json!({"name": "n", "value": "v".repeat(bytes)});
    let with = |headers: Vec<Value>, body: usize| {
        json!({"CanisterHttpReply": {
            "status": 200, "headers": headers, "body": base64(&vec![1; body]),
        }})
    };
    let plain = Request::get(URL);
    for (request, response, expected, words) in [
        (&transformed("bloat"), replied(b""), 1, "Transformed http response exceeds limit: 3000"),
        (&transformed("fails"), replied(b""), 5, "http"),
        (&transformed("composite"), replied(b""), 5, "composite"),
        (&transformed("absent"), replied(b""), 5, "absent"),
        (&plain, with(vec![], 3_001), 1, "Http body exceeds size limit of 3000 bytes."),
        (&plain, with(vec![header(9)], 2_991), 1, "Http body exceeds size limit of 3000 bytes."),
        (&plain, with(vec![header(3_000)], 0), 1, "Header size exceeds"),
        (&plain, with(vec![header(1); 65], 0), 1, "too many or too large headers"),
        (&plain, with(vec![header(8_193)], 0), 1, "too many or too large headers"),
        (&plain, rejected(2, "nobody is there"), 2, "nobody is there"),
        (&plain, rejected(5, &"x".repeat(1_024)), 5, "xxx"),
        // A reject does not go through the transform.
        (&transformed("fixed"), rejected(3, "none"), 3, "none"),
    ] {
        let got = asking.got(request, &response, &[]).await;
        let (code, text) = got.reject();
        assert_eq!(code, expected, "{text}");
        assert!(text.contains(words), "{text}");
    }
    let got = asking.got(&plain, &with(vec![header(9)], 2_990), &[]).await;
    assert_eq!(got.response().body.len(), 2_990);
}

// Promise: P12 - Mocked answers of all nodes are agreed on or rejected.
#[tokio::test]
async fn a_response_of_each_node_is_agreed_on_or_rejected() {
    let asking = Asking::start().await;
    let (same, other) = (replied(b"same"), replied(b"other"));
    let others = |same_too: usize| {
        let all = [vec![same.clone(); same_too], vec![other.clone(); 12 - same_too]];
        all.concat()
    };
    let plain = Request::get(URL);
    let got = asking.got(&plain, &same, &others(8)).await;
    assert_eq!(got.response().body, b"same", "nine of thirteen");
    let got = asking.got(&plain, &other, &vec![same.clone(); 12]).await;
    assert_eq!(got.response().body, b"same", "all but the first");
    let got = asking.got(&plain, &same, &others(7)).await;
    let (code, text) = got.reject();
    assert_eq!(code, 2);
    assert!(text.starts_with("No consensus could be reached."), "{text}");
    // The nodes' responses are transformed before they are compared; failures are compared too.
    let transformed = Request::get(URL).transformed(first(), "fixed");
    let each: Vec<_> = (0..12_u8).map(|node| replied(&[node])).collect();
    let got = asking.got(&transformed, &same, &each).await;
    assert_eq!(got.response().body, b"same");
    let got = asking.got(&plain, &same, &vec![rejected(2, "down"); 12]).await;
    assert_eq!(got.reject(), (2, "down"));
    // One that one node makes is that node's.
    let alone = Request { is_replicated: Some(false), ..Request::get(URL) };
    let got = asking.got(&alone, &same, &each).await;
    assert_eq!(got.response().body, b"same");
    // As many as there are nodes, or one.
    let call = asking.begin(&plain).await;
    let id = asking.number().await;
    for given in [1, 11, 13] {
        let refusal = asking.refusal(&asking.mock(id, &same, &vec![same.clone(); given])).await;
        let words = format!("InvalidMockCanisterHttpResponses(({}, 13))", given + 1);
        assert!(refusal.starts_with(&words), "{refusal}");
    }
    assert_eq!(asking.number().await, id, "it is still open");
    asking.answer(id, &same, &[]).await;
    assert_eq!(asking.end(&call).await.response().body, b"same");
}

// Promise: P12 - An outcall ends by the time of its instance.
#[tokio::test]
async fn a_request_ends_by_the_time_of_the_instance() {
    let asking = Asking::start().await;
    let (answered, late, silent) = (
        asking.begin(&Request::get("https://a.example/answered")).await,
        asking.begin(&Request::get("https://a.example/late")).await,
        asking.begin(&Request::get("https://a.example/silent")).await,
    );
    asking.advance(59).await;
    asking.answer(0, &replied(b"in time"), &[]).await;
    asking.tick().await;
    assert_eq!(asking.pending().await.len(), 2);
    // It is over before a round has it.
    asking.answer(1, &replied(b"late"), &[]).await;
    asking.advance(2).await;
    asking.tick().await;
    assert_eq!(asking.pending().await, Vec::<Value>::new());
    assert_eq!(asking.end(&answered).await.response().body, b"in time");
    for call in [late, silent] {
        assert_eq!(asking.end(&call).await.reject(), (2, "Canister http request timed out"));
    }
    let refusal = asking.refusal(&asking.mock(2, &replied(b"late"), &[])).await;
    assert!(refusal.starts_with("InvalidCanisterHttpRequestId(("), "{refusal}");
}

// Promise: P12 - Open outcalls are saved with a kept instance.
#[tokio::test]
async fn what_is_open_is_kept_with_the_instance() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = one_subnet();
    config["state_dir"] = json!(folder.path());
    let asking = Asking::with(&config).await;
    asking.server.deploy(asking.instance, &module()).await;
    let call = asking.begin(&Request::get(URL)).await;
    let before = asking.pending().await;
    // An answer that no round had yet is not a part of the state.
    asking.answer(0, &replied(b"forgotten"), &[]).await;
    assert_eq!(asking.server.deleted(asking.instance).await.0, StatusCode::OK);
    let asking = Asking::on(asking.server, &config).await;
    assert_eq!(asking.pending().await, before);
    asking.answer(0, &replied(b"kept"), &[]).await;
    assert_eq!(asking.end(&call).await.response().body, b"kept");
}

// Promise: P12 - Each subnet of an instance has its own outcalls.
#[tokio::test]
async fn outcalls_are_listed_under_their_subnet() {
    #[derive(candid::CandidType)]
    struct Nothing {}
    #[derive(candid::CandidType, candid::Deserialize)]
    struct CreatedCanister {
        canister_id: Principal,
    }
    let spec = json!({"state_config": "New", "instruction_config": "Production"});
    let config = json!({"subnet_config_set": {"nns": spec, "application": [spec]}});
    let server = Server::start(&[]);
    let created = server.ok("/instances", &config).await;
    let sizes: std::collections::BTreeMap<_, _> = created["Created"]["topology"]["subnet_configs"]
        .as_object()
        .unwrap()
        .values()
        .map(|it| (it["subnet_kind"].as_str().unwrap(), it["node_ids"].as_array().unwrap().len()))
        .collect();
    assert_eq!(sizes, [("Application", 13), ("NNS", 40)].into());
    let ids = subnets(&created);
    let asking = Asking { server, instance: 0, subnet: ids[0].clone() };
    let mut calls = Vec::new();
    for subnet in &ids {
        let nothing = candid::encode_one(Nothing {}).unwrap();
        let mut create = call(&[], "provisional_create_canister_with_cycles", &nothing);
        create["effective_principal"] = json!({ "SubnetId": subnet });
        let made = asking.server.update(0, &create).await;
        let made: CreatedCanister = candid::decode_one(&unbase64(&made["Ok"])).unwrap();
        let id = made.canister_id.as_slice();
        asking.server.install(0, id, &module()).await;
        let ask = call(id, "ask", &Request::get(URL).encoded());
        let submitted = asking.server.ok(&asking.at("update/submit_ingress_message"), &ask).await;
        calls.push(submitted["Ok"].clone());
    }
    asking.tick().await;
    asking.tick().await;
    let pending = asking.pending().await;
    let of: Vec<_> = pending.iter().map(|it| it["subnet_id"]["subnet_id"].clone()).collect();
    assert_eq!(of, ids);
    let numbers: Vec<_> = pending.iter().map(|it| it["request_id"].as_u64().unwrap()).collect();
    // An answer for the other subnet is none.
    let refusal = asking.refusal(&asking.mock(numbers[1], &replied(b"x"), &[])).await;
    assert!(refusal.starts_with("InvalidCanisterHttpRequestId(("), "{refusal}");
    asking.answer(numbers[0], &replied(b"nns"), &vec![replied(b"nns"); 39]).await;
    let other = Asking { subnet: ids[1].clone(), ..asking };
    other.answer(numbers[1], &replied(b"application"), &vec![replied(b"application"); 12]).await;
    assert_eq!(other.end(&calls[0]).await.response().body, b"nns");
    assert_eq!(other.end(&calls[1]).await.response().body, b"application");
}

// Promise: P15 - Invalid mocked answers are refused and change nothing.
#[tokio::test]
async fn answers_that_are_none_are_refused_and_change_nothing() {
    let asking = Asking::start().await;
    let request = Request { max_response_bytes: Some(1_900_000), ..Request::get(URL) };
    let call = asking.begin(&request).await;
    let good = replied(b"good");
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut mock = asking.mock(0, &good, &[]);
        change(&mut mock);
        mock
    };
    let headers = json!(vec![json!({"name": "", "value": ""}); 1_025]);
    for (mock, words) in [
        (changed(&|it| it["request_id"] = json!(1)), "InvalidCanisterHttpRequestId(("),
        (changed(&|it| it["request_id"] = json!(u64::MAX)), "InvalidCanisterHttpRequestId(("),
        (changed(&|it| it["request_id"] = json!(-1)), "the body"),
        (changed(&|it| it["subnet_id"]["subnet_id"] = base64(&[1; 29])), "SubnetNotFound("),
        (changed(&|it| it["subnet_id"]["subnet_id"] = base64(&[1; 40])), "no principal"),
        (changed(&|it| it["response"] = rejected(0, "")), "InvalidRejectCode(0)"),
        (changed(&|it| it["response"] = rejected(7, "")), "InvalidRejectCode(7)"),
        (
            changed(&|it| it["response"] = rejected(1, &"x".repeat(1_025))),
            "reject_message_bytes = 1024",
        ),
        (
            changed(&|it| it["response"]["CanisterHttpReply"]["headers"] = headers.clone()),
            "more than 1024 values",
        ),
        (
            changed(&|it| it["additional_responses"] = json!(vec![good.clone(); 65])),
            "more than 64 values",
        ),
        (changed(&|it| it["response"]["CanisterHttpReply"]["body"] = json!("%")), "the body"),
        (changed(&|it| it["response"]["CanisterHttpReply"]["status"] = json!(70_000)), "the body"),
        (changed(&|it| it["response"] = json!({})), "the body"),
    ] {
        let refusal = asking.refusal(&mock).await;
        assert!(refusal.contains(words), "{words}: {refusal}");
    }
    let flexible = json!({
        "subnet_id": {"subnet_id": asking.subnet}, "request_id": 0, "responses": [good],
    });
    let path = asking.at("update/mock_flexible_canister_http");
    let refusal = asking.server.refusal(&path, &flexible).await;
    assert!(refusal.contains("flexible_http_request is not offered"), "{refusal}");
    let long = asking.mock(0, &replied(&vec![0; 4 << 20]), &[]);
    let (status, answer) = asking.server.post(&asking.at("update/mock_canister_http"), &long).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer["message"].as_str().unwrap().contains("body_bytes"), "{answer}");
    assert_eq!(asking.number().await, 0);
    asking.answer(0, &good, &[]).await;
    assert_eq!(asking.end(&call).await.response().body, b"good");
}

// Promise: P12 - Open outcalls of an instance are limited to 4 MiB, and the refusal names the
//   limit.
#[tokio::test]
async fn what_waits_is_bounded_and_the_limit_is_named() {
    let asking = Asking::start().await;
    // Requests in the state.
    let body = Some(ByteBuf::from(vec![7; 1_900_000]));
    let large = Request { max_response_bytes: Some(10), body, ..Request::get(URL) };
    asking.begin(&large).await;
    asking.begin(&large).await;
    let third = asking.begin(&large).await;
    let got = asking.end(&third).await;
    let (code, text) = got.reject();
    assert!(code == 2 && text.contains("4194304 (outcalls.open_bytes)"), "{code} {text}");
    let pending = asking.pending().await;
    assert_eq!(pending.iter().map(|it| unbase64(&it["body"]).len()).sum::<usize>(), 3_800_000);
    asking.advance(61).await;
    asking.tick().await;
    // Answers that no round has.
    let large = Request { max_response_bytes: Some(1_900_000), ..Request::get(URL) };
    let mut calls = Vec::new();
    for _ in 0..9 {
        calls.push(asking.begin(&large).await);
    }
    let response = replied(&vec![1; 1_899_000]);
    let path = asking.at("update/mock_canister_http");
    let mut answered = 0;
    let refusal = loop {
        let id = asking.pending().await[0]["request_id"].as_u64().unwrap();
        let (status, answer) = asking.server.post(&path, &asking.mock(id, &response, &[])).await;
        if status == StatusCode::BAD_REQUEST {
            break answer["message"].as_str().unwrap().to_owned();
        }
        assert_eq!(status, StatusCode::OK, "{answer}");
        answered += 1;
    };
    assert!(refusal.contains("the pool outcalls has 16777216 bytes"), "{refusal}");
    assert!((4..9).contains(&answered), "{answered}");
    // Rounds have them, and their room is free again.
    for call in &calls[..answered] {
        assert_eq!(asking.end(call).await.response().body.len(), 1_899_000);
    }
    let id = asking.pending().await[0]["request_id"].as_u64().unwrap();
    asking.answer(id, &response, &[]).await;
    assert_eq!(asking.end(&calls[answered]).await.response().body.len(), 1_899_000);
}

/// A server of plain HTTP on this machine that answers with the path, but for `/silent`; how often
/// it was asked.
fn local_server() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = asked.clone();
    std::thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split_whitespace().nth(1).unwrap_or_default();
            counted.fetch_add(1, Ordering::SeqCst);
            if path == "/silent" {
                silent.push(stream);
                continue;
            }
            let length = path.len();
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{path}");
            stream.write_all(text.as_bytes()).unwrap();
        }
    });
    (port, asked)
}

// Promise: P16 - A live instance does not reach private networks unless an option allows it.
#[tokio::test]
async fn a_live_instance_does_not_reach_private_networks_unless_they_are_allowed() {
    let asking = Asking::start().await;
    let (port, asked) = local_server();
    asking.server.ok(&asking.at("auto_progress"), &json!({})).await;
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "10.0.0.1", "0.0.0.0"] {
        let request = Request::get(format!("http://{host}:{port}/secret"));
        let ask = call(&FIRST, "ask", &request.encoded());
        let answer = asking.server.update(asking.instance, &ask).await;
        let got = Got::read(&unbase64(&answer["Ok"]));
        let (_, text) = got.reject();
        assert!(text.contains("not allowed") || text.contains("resolve"), "{host}: {text}");
        if text.contains("not allowed") {
            assert!(text.contains("--allow-network NETWORK"), "{host}: {text}");
        }
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    let output = program().args(["--allow-network", "home"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("127.0.0.0/8"));
}

// Promise: P12 - A live instance sends requests to real servers and cancels them when it leaves
//   live mode.
#[tokio::test]
async fn a_live_instance_asks_servers_and_gives_up_when_it_is_live_no_more() {
    let asking = Asking::start_with(&["--allow-network", "10.0.0.0/8,127.0.0.0/8"]).await;
    let (port, asked) = local_server();
    asking.server.ok(&asking.at("auto_progress"), &json!({})).await;
    let transformed = |path: &str, method: &str| {
        let request = Request::get(format!("http://127.0.0.1:{port}/{path}"));
        if method.is_empty() { request } else { request.transformed(first(), method) }
    };
    for (method, body) in [("", &b"/said"[..]), ("fixed", b"same")] {
        let ask = call(&FIRST, "ask", &transformed("said", method).encoded());
        let answer = asking.server.update(asking.instance, &ask).await;
        let response: HttpRequestResult = Got::read(&unbase64(&answer["Ok"])).response();
        assert_eq!(response.body, body);
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let silent = asking.begin(&transformed("silent", "")).await;
    testing::until("the server is asked", || asked.load(Ordering::SeqCst) == 3);
    asking.server.ok(&asking.at("stop_progress"), &json!({})).await;
    let id = asking.number().await;
    asking.answer(id, &replied(b"mocked"), &[]).await;
    assert_eq!(asking.end(&silent).await.response().body, b"mocked");
    // No server is asked while rounds are executed on request.
    let by_hand = asking.begin(&transformed("said", "")).await;
    let id = asking.number().await;
    asking.answer(id, &replied(b"by hand"), &[]).await;
    assert_eq!(asking.end(&by_hand).await.response().body, b"by hand");
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    // Outcalls that are open when it is live again are made then.
    let again = asking.begin(&transformed("again", "")).await;
    asking.server.ok(&asking.at("auto_progress"), &json!({})).await;
    assert_eq!(asking.end(&again).await.response().body, b"/again");
}
