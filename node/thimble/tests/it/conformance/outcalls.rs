//! Chapter "Management canister", section "IC method `http_request`".

use candid::{Decode, Encode};
use ic_management_canister_types::{CanisterInstallMode, HttpRequestResult, TransformArgs};
use serde_bytes::ByteBuf;

use super::{
    fixture::*,
    harness,
    kit::{self, *},
    program::*,
};

/// A server that says what it was asked, or as many bytes as the path says, or nothing.
async fn server() -> Server {
    Server::start(authority(), |asked| {
        let path = asked.head.split_whitespace().nth(1).unwrap_or_default().to_owned();
        if let Some(bytes) = path.strip_prefix("/bytes/") {
            return Some((200, vec![b'x'; bytes.parse().unwrap()]));
        }
        match path.as_str() {
            "/never" => None,
            "/missing" => Some((404, b"nothing".to_vec())),
            _ => Some((200, [asked.head.as_bytes(), &asked.body].concat())),
        }
    })
    .await
}

/// A canister that asks.
async fn asker(world: &World) -> candid::Principal {
    let id = world.empty().await;
    world.install(id, CanisterInstallMode::Install, kit::module(), vec![]).await.unwrap();
    id
}

async fn ask(world: &World, asker: candid::Principal, request: &Request) -> Got {
    Got::read(&harness::update(&world.agent, asker, "ask", request.encoded()).await.unwrap())
}

/// Bytes that a request is charged for.
fn charged(request: &Request) -> u64 {
    let headers = request.headers.iter().map(|it| it.name.len() + it.value.len()).sum::<usize>();
    let body = request.body.as_ref().map_or(0, |body| body.len());
    (request.url.len() + headers + body) as u64
}

// Promise: P12 - A response contains status, headers and body, and unused cycles are refunded.
#[test]
fn a_response_has_status_headers_and_body_and_the_rest_of_the_cycles_comes_back() {
    run(async |world| {
        let (server, asker) = (server().await, asker(world).await);
        let mut request = Request::get(server.url("where?a=b")).header("X-Own", "mine");
        request.method = Method::post;
        request.body = Some(ByteBuf::from(b"the body"));
        let got = ask(world, asker, &request).await;
        let response = got.response();
        assert_eq!(response.status, 200_u8);
        let header = response.headers.iter().find(|header| header.name == "x-server");
        assert_eq!(header.map(|header| header.value.as_str()), Some("test"));
        let said = String::from_utf8(response.body).unwrap();
        assert!(said.starts_with("post /where?a=b http/1.1\r\n"), "{said}");
        assert!(said.ends_with("\r\n\r\nthe body"), "{said}");
        for line in ["x-own: mine\r\n", "user-agent: ic/1.0\r\n"] {
            assert!(said.contains(line), "{said}");
        }
        // The price is what `ic0.cost_http_request` says.
        let canister = world.canister().await;
        let cost = program().amount("cost_http_request", &[charged(&request), 3_000]).reply();
        let price = number(canister.query(cost).await);
        assert_eq!(got.refunded, u128::from(ATTACHED) - price);
        assert!(price > 49_140_000, "{price}");

        let missing = ask(world, asker, &Request::get(server.url("missing"))).await.response();
        assert_eq!((missing.status, missing.body), (404_u16.into(), b"nothing".to_vec()));
        let mut head = Request::get(server.url(""));
        head.method = Method::head;
        let head = ask(world, asker, &head).await.response();
        assert_eq!((head.status, head.body.len()), (200_u8.into(), 0));
    });
}

#[test]
fn what_the_interface_does_not_allow_is_rejected_and_all_cycles_come_back() {
    run(async |world| {
        let (asker, other) = (asker(world).await, world.canister().await);
        let base = || Request::get("https://localhost:1/");
        let with = |change: fn(&mut Request)| {
            let mut request = base();
            change(&mut request);
            request
        };
        let many = (0..65).fold(base(), |request, number| request.header(number.to_string(), ""));
        let large = (0..7)
            .fold(base(), |request, number| request.header(number.to_string(), "v".repeat(7_100)));
        let cases = [
            (with(|it| it.url = format!("https://localhost/{}", "a".repeat(8_192))), "8192"),
            (with(|it| it.max_response_bytes = Some(2_000_001)), "[0..2000000], got 2000001"),
            (many, "65 http headers exceed the limit of 64"),
            (base().header("n".repeat(8_193), "v"), "over the limit of 8192"),
            (base().header("n", "v".repeat(8_193)), "over the limit of 8192"),
            (large, "over the limit of 49152"),
            (with(|it| it.body = Some(ByteBuf::from(vec![0; 2_000_001]))), "2000001 bytes"),
            (with(|it| it.method = Method::put), "PUT is supported in non-replicated mode only"),
            (with(|it| it.method = Method::delete), "DELETE is supported"),
            (with(|it| it.method = Method::patch), "PATCH is supported"),
            (base().transformed(other.id, "fixed"), "must be by the caller"),
        ];
        let mut differences = Differences::default();
        for (request, text) in cases {
            let got = ask(world, asker, &request).await;
            let (code, told) = got.reject();
            if code != 4 || !told.contains(text) || got.refunded != u128::from(ATTACHED) {
                differences.record(text, &got);
            }
        }
        differences.none();
    });
}

// Promise: P12 - A request without enough cycles is rejected with the price.
#[test]
fn a_request_without_enough_cycles_is_rejected_with_the_price() {
    run(async |world| {
        let canister = world.canister().await;
        let mut request = Request::get("https://localhost:1/");
        request.max_response_bytes = Some(0);
        let price = 49_140_000 + 5_200 * u128::from(charged(&request));
        let call = |cycles: u128| {
            Call::to(harness::management(), "http_request")
                .argument(request.encoded())
                .cycles(cycles)
        };
        let told = told_reject(canister.update(program().call_must(call(price - 1))).await);
        let text = format!(
            "http_request request sent with {} cycles, but {price} cycles are required.",
            price - 1
        );
        assert_eq!(told, (4, text));
        let (code, told) = told_reject(canister.update(program().call_must(call(price))).await);
        assert_eq!((code, told.as_str()), (2, "Connecting to localhost:1 failed"));
        // Where no most is stated, the largest is paid for.
        request.max_response_bytes = None;
        let call = Call::to(harness::management(), "http_request").argument(request.encoded());
        let (_, told) = told_reject(canister.update(program().call_must(call)).await);
        let price = 49_140_000 + 5_200 * u128::from(charged(&request)) + 10_400 * 2_000_000;
        assert!(told.contains(&format!("but {price} cycles are required")), "{told}");
    });
}

#[test]
fn users_cannot_make_requests() {
    run(async |world| {
        let canister = world.canister().await;
        let request = Request::get("https://localhost:1/").encoded();
        assert_eq!(code(world.manage(canister.id, "http_request", request).await), 4);
    });
}

// Promise: P12 - The transform function gets response and context from the management canister.
#[test]
fn the_transform_gets_response_and_context_from_the_management_canister() {
    run(async |world| {
        let (server, asker) = (server().await, asker(world).await);
        let echoed = Request::get(server.url("missing")).transformed(asker, "echo");
        let got = ask(world, asker, &echoed).await.result.unwrap();
        let (length, rest) = got.split_first().unwrap();
        let (caller, argument) = rest.split_at((*length).into());
        assert_eq!(caller, harness::management().as_slice());
        let argument = Decode!(argument, TransformArgs).unwrap();
        assert_eq!(argument.response.status, 404_u16);
        assert_eq!(
            (argument.response.body, argument.context),
            (b"nothing".to_vec(), b"context".to_vec())
        );
        let fixed = Request::get(server.url("missing")).transformed(asker, "fixed");
        let fixed = ask(world, asker, &fixed).await.response();
        let same =
            HttpRequestResult { status: 200_u8.into(), headers: vec![], body: b"same".to_vec() };
        assert_eq!(fixed, same);
    });
}

#[test]
fn a_transform_that_fails_says_so() {
    run(async |world| {
        let (server, asker) = (server().await, asker(world).await);
        for (method, code, text) in [
            ("fails", 5, "http"),
            ("nowhere", 5, "has no query method 'nowhere'"),
            ("composite", 5, "has no query method 'composite'"),
            ("bloat", 1, "Transformed http response exceeds limit: 3000"),
        ] {
            let request = Request::get(server.url("")).transformed(asker, method);
            let got = ask(world, asker, &request).await;
            let (told, message) = got.reject();
            assert_eq!(told, code, "{method}: {message}");
            assert!(message.contains(text), "{method}: {message}");
            assert!(got.refunded < u128::from(ATTACHED), "the request was made, and is paid for");
        }
    });
}

// Promise: P12 - A response has at most as many bytes as the canister allows.
#[test]
fn a_response_may_have_as_many_bytes_as_were_asked_for_and_no_more() {
    run(async |world| {
        let (server, asker) = (server().await, asker(world).await);
        // Names and values of its two headers count: x-server test, content-length 4 digits.
        let headers = "x-server".len() + "test".len() + "content-length".len() + 4;
        let most = 3_000 - headers;
        let fits = ask(world, asker, &Request::get(server.url(&format!("bytes/{most}")))).await;
        assert_eq!(fits.response().body.len(), most);
        let more = Request::get(server.url(&format!("bytes/{}", most + 1)));
        let got = ask(world, asker, &more).await;
        assert_eq!(got.reject(), (1, "Http body exceeds size limit of 3000 bytes."));
        let mut none = Request::get(server.url("bytes/1"));
        none.max_response_bytes = Some(0);
        let got = ask(world, asker, &none).await;
        assert_eq!(got.reject(), (1, "Header size exceeds specified response size limit 0"));
        // The largest there may be.
        let mut largest = Request::get(server.url("bytes/1990000"));
        largest.max_response_bytes = None;
        let largest = ask(world, asker, &largest).await;
        assert_eq!(largest.response().body.len(), 1_990_000);
    });
}

#[test]
fn urls_that_name_no_server_to_be_reached_are_told_apart() {
    run(async |world| {
        let asker = asker(world).await;
        for (url, code, text) in [
            ("nonsense", 1, "Failed to parse URL"),
            ("http://localhost/", 1, "Url need to specify https scheme"),
            ("https://10.1.2.3/", 2, "Connecting to 10.1.2.3:443 is not allowed"),
            ("https://[::ffff:169.254.169.254]/", 2, "is not allowed: it has no public address"),
            ("https://localhost:1/", 2, "Connecting to localhost:1 failed"),
            ("https://no-such-name.invalid/", 2, "Connecting to no-such-name.invalid:443 failed"),
        ] {
            let got = ask(world, asker, &Request::get(url)).await;
            let (told, message) = got.reject();
            assert!(told == code && message.contains(text), "{url}: {told} {message}");
        }
        let wrong = Request::get("https://localhost:1/").header("a b", "v");
        let got = ask(world, asker, &wrong).await;
        assert_eq!(got.reject(), (1, "Failed to parse http header 0"));
    });
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    run(async |world| {
        let (server, asker) = (server().await, asker(world).await);
        let got = ask(world, asker, &Request::get(server.url("never"))).await;
        assert_eq!(got.reject(), (1, "Timeout expired"));
    });
}

#[test]
fn one_member_alone_may_send_every_method() {
    run(async |world| {
        let (server, asker) = (server().await, asker(world).await);
        for (method, name) in [
            (Method::get, "get"),
            (Method::put, "put"),
            (Method::delete, "delete"),
            (Method::patch, "patch"),
        ] {
            let mut request = Request::get(server.url("here"));
            (request.method, request.is_replicated) = (method, Some(false));
            let body = ask(world, asker, &request).await.response().body;
            assert!(body.starts_with(format!("{name} /here").as_bytes()), "{name}");
        }
    });
}

#[test]
fn what_is_no_argument_of_a_request_is_rejected() {
    run(async |world| {
        let asker = asker(world).await;
        for argument in [Encode!().unwrap(), Encode!(&7_u8).unwrap(), b"nonsense".to_vec()] {
            let reply = harness::update(&world.agent, asker, "ask", argument).await.unwrap();
            let got = Got::read(&reply);
            assert_eq!((got.reject().0, got.refunded), (4, u128::from(ATTACHED)));
        }
    });
}
