//! Canisters ask servers outside: one node, and four that must agree on what was said.

use candid::Principal;
use ic_agent::{Agent, RequestId};
use ic_management_canister_types::CanisterInstallMode;
use testing::until_async;

use crate::{harness::*, subnet::Subnet};

#[allow(dead_code)]
pub(crate) mod kit;

use kit::*;

pub(crate) async fn deploy_asker(agent: &Agent) -> Principal {
    let asker = create(agent).await;
    install(agent, asker, CanisterInstallMode::Install, module(), vec![]).await.unwrap();
    asker
}

pub(crate) async fn ask(agent: &Agent, asker: Principal, request: &Request) -> Got {
    Got::read(&update(agent, asker, "ask", request.encoded()).await.unwrap())
}

/// Has the canister ask, and does not wait for what comes.
fn begin(agent: &Agent, asker: Principal, request: &Request) -> RequestId {
    let signed = agent.update(&asker, "ask").with_arg(request.encoded()).sign().unwrap();
    // The node may be killed while it waits for the reply.
    let (agent, call) = (agent.clone(), signed.signed_update);
    tokio::spawn(async move { drop(agent.update_signed(asker, call).await) });
    signed.request_id
}

/// The result of the request.
async fn end(agent: &Agent, asker: Principal, request: &RequestId) -> Got {
    let (reply, _) = agent.wait(request, asker).await.unwrap();
    Got::read(&reply)
}

/// Says something else each time at `/differs`, and the same elsewhere.
pub(crate) async fn server(authority: &Authority) -> Server {
    Server::start(authority, |asked| {
        let path = asked.head.split_whitespace().nth(1).unwrap_or_default();
        if path == "/differs" {
            return Some((200, asked.number.to_string().into_bytes()));
        }
        Some((200, path.as_bytes().to_vec()))
    })
    .await
}

// Promise: P12 - A node sends no requests unless its operator enables outcalls.
#[tokio::test]
async fn a_node_makes_no_requests_unless_its_operator_says_so() {
    let authority = Authority::new();
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let server = server(&authority).await;
    let asker = deploy_asker(&agent).await;
    let got = ask(&agent, asker, &Request::get(server.url(""))).await;
    let (code, text) = got.reject();
    assert_eq!((code, got.refunded), (5, u128::from(ATTACHED)));
    assert!(text.contains("HTTPS outcalls are switched off on this subnet"), "{text}");
    assert!(node.log().contains("features.outcalls (--outcalls) enables them"));
    assert_eq!(server.asked(), 0);
}

#[test]
fn a_node_without_memory_for_requests_says_so_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let run = thimble()
        .args(["run", "--memory", "256MiB", "--outcalls", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(folder.path().join("data"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(!run.status.success() && told.contains("outcalls.bytes = 0"), "{told}");
}

// Promise: P12 - An answer is delivered once over `kill -9`, and replays send no request.
#[tokio::test]
async fn a_request_survives_a_kill_and_is_answered_once_and_replays() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let no_checkpoint = "[limits.pages]\ncheckpoint_interval_rounds = 1000000\n";
    let config = authority.configuration(folder.path()) + no_checkpoint;
    let mut node = Node::start_as("512MiB", &config, "").await;
    let agent = node.agent(1).await;
    let (server, asker) = (server(&authority).await, deploy_asker(&agent).await);
    let before = ask(&agent, asker, &Request::get(server.url("before"))).await;
    assert_eq!(before.response().body, b"/before");

    server.hold();
    let request = begin(&agent, asker, &Request::get(server.url("held")));
    until_async("the server is asked", async || server.asked() == 2).await;
    node.kill();
    node.launch().await;
    until_async("the server is asked again", async || server.asked() == 3).await;
    server.speak();
    let agent = node.agent(1).await;
    let got = end(&agent, asker, &request).await;
    assert_eq!(got.response().body, b"/held");
    // The same bytes of the same answers: no server is asked.
    node.kill();
    let replayed = thimble().args(["replay", "--check"]).arg(&node.data).output().unwrap();
    let told = String::from_utf8_lossy(&replayed.stderr).into_owned();
    assert!(replayed.status.success(), "{told}");
    assert_eq!(server.asked(), 3);
}

// Promise: P12 - A request that waits beyond its deadline is rejected.
#[tokio::test]
async fn a_request_whose_time_is_over_is_rejected() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let config =
        authority.configuration(folder.path()) + "[limits.outcalls]\ntimeout_seconds = 3\n";
    let node = Node::start_as("512MiB", &config, "").await;
    let agent = node.agent(1).await;
    let (server, asker) = (server(&authority).await, deploy_asker(&agent).await);
    server.hold();
    let got = ask(&agent, asker, &Request::get(server.url("held"))).await;
    assert_eq!(got.reject(), (2, "Canister http request timed out"));
    assert!(got.refunded < u128::from(ATTACHED), "it is paid for");
    // Its memory and its place are free again.
    until_async("nothing is held", async || {
        node.metric("thimble_pool_used_bytes{pool=\"outcalls\"}").await == 0
    })
    .await;
    server.speak();
    let got = ask(&agent, asker, &Request::get(server.url("after"))).await;
    assert_eq!(got.response().body, b"/after");
}

// Promise: P12 - Requests beyond the places wait for one.
#[tokio::test]
async fn requests_beyond_the_places_wait_for_one() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    // A canister has a quarter of the places.
    let config = authority.configuration(folder.path()) + "[limits.outcalls]\nin_flight = 8\n";
    let node = Node::start_as("512MiB", &config, "").await;
    let agent = node.agent(1).await;
    let (server, asker) = (server(&authority).await, deploy_asker(&agent).await);
    server.hold();
    let mut requests = Vec::new();
    for number in 0..6 {
        let request = Request::get(server.url(&number.to_string()));
        requests.push(begin(&agent, asker, &request));
    }
    until_async("two are made", async || server.asked() == 2).await;
    server.speak();
    for (number, request) in requests.iter().enumerate() {
        let body = end(&agent, asker, request).await.response().body;
        assert_eq!(body, format!("/{number}").into_bytes());
    }
    assert_eq!(server.asked(), 6);
}

// Promise: P12 - A member that differs in outcalls from the subnet exits with the setting.
#[tokio::test]
async fn members_must_all_make_requests_or_none() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut subnet = Subnet::start_with(&authority.configuration(folder.path())).await;
    let odd = &mut subnet.nodes[3];
    odd.stop();
    odd.configure("");
    odd.spawn();
    assert!(!odd.ended().await.success());
    let log = odd.log();
    assert!(log.contains("features.outcalls is 0 here and 1 there"), "{log}");
}

// Promise: P12 - Four members agree on an answer or on divergence.
#[tokio::test]
async fn four_nodes_agree_on_what_a_server_says_or_that_they_do_not() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut subnet = Subnet::start_with(&authority.configuration(folder.path())).await;
    let agent = subnet.nodes[0].agent(1).await;
    let (server, asker) = (server(&authority).await, deploy_asker(&agent).await);

    let same = ask(&agent, asker, &Request::get(server.url("same"))).await;
    assert_eq!(same.response().body, b"/same");
    until_async("every member asked", async || server.asked() == 4).await;

    // Each gets a different answer; a transform makes them equal.
    let differs = Request::get(server.url("differs"));
    let got = ask(&agent, asker, &differs).await;
    let (code, text) = got.reject();
    assert_eq!(code, 2, "{text}");
    assert!(text.starts_with("No consensus could be reached. Replicas had different responses"));
    let transformed = ask(&agent, asker, &differs.clone().transformed(asker, "fixed")).await;
    assert_eq!(transformed.response().body, b"same");

    // One member alone asks.
    let before = server.asked();
    let mut alone = Request::get(server.url("differs"));
    (alone.method, alone.is_replicated) = (Method::put, Some(false));
    let got = ask(&agent, asker, &alone).await.response();
    assert_eq!(got.body, before.to_string().into_bytes());
    assert_eq!(server.asked(), before + 1);

    let mut small = Request::get(server.url("a-path-that-is-too-long"));
    small.max_response_bytes = Some(40);
    let got = ask(&agent, asker, &small).await;
    assert_eq!(got.reject(), (1, "Http body exceeds size limit of 40 bytes."));

    // One member reaches no server: the three others are enough, and it has their answer.
    subnet.nodes[3].stop();
    let mut cut_off = authority.configuration(folder.path());
    cut_off = cut_off.replace("\"127.0.0.0/8\", \"::1/128\"", "");
    subnet.nodes[3].configure(&cut_off);
    subnet.nodes[3].launch().await;
    let got = ask(&agent, asker, &Request::get(server.url("three"))).await;
    assert_eq!(got.response().body, b"/three");
    let by_itself = subnet.nodes[3].agent(1).await;
    let got = ask(&by_itself, asker, &Request::get(server.url("through-it"))).await;
    assert_eq!(got.response().body, b"/through-it");
}

// Promise: P12 - A request survives a kill of its members between request and answer.
#[tokio::test]
async fn a_request_outlives_members_that_are_killed_before_its_answer() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let mut subnet = Subnet::start_with(&authority.configuration(folder.path())).await;
    let agent = subnet.nodes[0].agent(1).await;
    let (server, asker) = (server(&authority).await, deploy_asker(&agent).await);

    server.hold();
    let request = begin(&agent, asker, &Request::get(server.url("one")));
    until_async("every member asked", async || server.asked() == 4).await;
    subnet.nodes[2].kill();
    server.speak();
    assert_eq!(end(&agent, asker, &request).await.response().body, b"/one");

    // The dead one comes back, and gets what it missed.
    subnet.nodes[2].launch().await;
    server.hold();
    let asked = server.asked();
    let request = begin(&agent, asker, &Request::get(server.url("all")));
    until_async("every member asked", async || server.asked() == asked + 4).await;
    subnet.nodes.iter_mut().for_each(Node::kill);
    subnet.start_all().await;
    until_async("enough members ask again", async || server.asked() >= asked + 7).await;
    server.speak();
    for node in &subnet.nodes {
        let agent = node.agent(1).await;
        assert_eq!(end(&agent, asker, &request).await.response().body, b"/all");
    }
}
