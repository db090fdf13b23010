//! The protocol, where the clients do not go by themselves.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::*;

#[test]
fn the_version_is_one_that_clients_take() {
    let output = program().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = text.trim_end_matches('\n').strip_prefix("pocket-ic-server ").unwrap();
    let parts: Vec<u64> = version.split('.').map(|part| part.parse().unwrap()).collect();
    assert_eq!(parts.len(), 3, "{version}");
    assert_eq!(parts[0], 16, "pocket-ic 16 takes 16.0.0 and above, below 17");
}

#[tokio::test]
async fn a_second_server_of_the_same_file_ends_at_once() {
    let server = Server::start(&[]);
    let second = program().arg("--port-file").arg(server.port_file()).output().unwrap();
    assert!(second.status.success());
    let (status, instances) = server.get("/instances").await;
    assert_eq!((status, instances), (StatusCode::OK, json!([])));
    let folder = server.stop();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[tokio::test]
async fn the_server_ends_when_no_request_comes() {
    let mut server = Server::start(&["--ttl", "1"]);
    server.instance(&one_subnet()).await;
    assert!(testing::eventually("the server ends", || server.has_ended()).success());
    assert!(server.files().is_empty() && !server.port_file().exists());
    let mut server = Server::start(&["--hard-ttl", "1"]);
    assert!(testing::eventually("the server ends", || server.has_ended()).success());
}

#[tokio::test]
async fn a_long_operation_is_asked_for_again() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    let spin = call(&FIRST, "spin", &candid::encode_one(4_000_000_000_u64).unwrap());
    let at = format!("/instances/{instance}/update");
    let submitted = server.ok(&format!("{at}/submit_ingress_message"), &spin).await;
    let awaited = format!("{at}/await_ingress_message");
    let (status, started) = server.post_waiting(&awaited, &submitted["Ok"], Some(1)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{started}");
    let name = |key: &str| started[key].as_str().unwrap().to_owned();
    let name = format!("{}/{}", name("state_label"), name("op_id"));
    let mut asked = 0;
    let answer = loop {
        let (status, answer) = server.get(&format!("/read_graph/{name}")).await;
        if status == StatusCode::OK {
            break answer;
        }
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(answer["message"].is_string(), "clients read an error: {answer}");
        asked += 1;
    };
    assert!(asked > 0);
    let spun: u64 = candid::decode_one(&unbase64(&answer["Ok"])).unwrap();
    assert!(spun >= 4_000_000_000);
    assert!(server.delete(&format!("/prune_graph/{name}")).await.is_success());
    assert_eq!(server.get(&format!("/read_graph/{name}")).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn what_is_wrong_is_told() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let at = format!("/instances/{instance}");
    for (path, body, words) in [
        ("update/set_time", json!({"nanos_since_epoch": 5}), "SettingTimeIntoPast"),
        ("update/set_time", json!({"seconds": 5}), "nanos_since_epoch"),
        ("read/get_cycles", json!({"canister_id": base64(&FIRST)}), "CanisterNotFound"),
        ("read/get_cycles", json!({"canister_id": "%"}), "the body"),
        ("read/pub_key", json!({"subnet_id": base64(&[1; 29])}), "SubnetNotFound"),
        (
            "update/await_ingress_message",
            json!({"effective_principal": "None", "message_id": base64(&[7; 32])}),
            "MessageIdNotFound",
        ),
        ("update/delete_subnet", json!({"subnet_id": base64(&[1; 29])}), "docs/pocket.md"),
        ("update/canister_snapshot_upload", json!({}), "docs/pocket.md"),
    ] {
        let refusal = server.refusal(&format!("{at}/{path}"), &body).await;
        assert!(refusal.contains(words), "{path}: {refusal}");
    }
    let elsewhere = json!({"SubnetId": base64(&[1; 29])});
    let mut lost = call(&[], "provisional_create_canister_with_cycles", b"DIDL\0\0");
    lost["effective_principal"] = elsewhere;
    let refusal = server.refusal(&format!("{at}/update/submit_ingress_message"), &lost).await;
    assert!(refusal.contains("RequestRoutingError"), "{refusal}");
    for path in
        ["/nothing".to_owned(), format!("{at}/read/nothing"), "/instances/7/read/topology".into()]
    {
        let (status, answer) = server.get(&path).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        assert!(answer["message"].is_string(), "{path}: {answer}");
    }
}

#[tokio::test]
async fn outcalls_and_bitcoin_are_refused_in_the_protocols_terms() {
    let server = Server::start(&[]);
    let created = server.ok("/instances", &one_subnet()).await;
    let configs = &created["Created"]["topology"]["subnet_configs"];
    let subnet = configs.as_object().unwrap().keys().next().unwrap().clone();
    let subnet = candid::Principal::from_text(subnet).unwrap();
    let (status, pending) = server.get("/instances/0/read/get_canister_http").await;
    assert_eq!((status, pending), (StatusCode::OK, json!([])));
    let mock = json!({
        "subnet_id": {"subnet_id": base64(subnet.as_slice())}, "request_id": 3,
        "response": {"CanisterHttpReply": {"status": 200, "headers": [], "body": ""}},
        "additional_responses": [],
    });
    for path in ["mock_canister_http", "mock_flexible_canister_http"] {
        let refusal = server.refusal(&format!("/instances/0/update/{path}"), &mock).await;
        assert!(refusal.contains("InvalidCanisterHttpRequestId"), "{refusal}");
    }
    let mut config = one_subnet();
    for (field, value, words) in [
        ("bitcoind_addr", json!(["127.0.0.1:8333"]), "Bitcoin"),
        ("icp_features", json!({"registry": "DefaultConfig"}), "registry"),
        ("mainnet_nns_subnet_id", json!(true), "NNS"),
        ("state_dir", json!("relative"), "absolute"),
    ] {
        config[field] = value;
        let (status, answer) = server.post("/instances", &config).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let message = answer["Error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
        config[field] = Value::Null;
    }
}

#[tokio::test]
async fn gateways_are_opened_listed_and_closed() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let asked = json!({"forward_to": {"PocketIcInstance": instance}});
    let created = server.ok("/http_gateway", &asked).await;
    let (number, port) = (&created["Created"]["instance_id"], &created["Created"]["port"]);
    let status = format!("http://127.0.0.1:{port}/api/v2/status");
    assert!(reqwest::get(&status).await.unwrap().status().is_success());
    let (_, listed) = server.get("/http_gateway").await;
    assert_eq!(listed[0]["port"], *port);
    assert_eq!(listed[0]["forward_to"]["PocketIcInstance"], instance);
    let by_instance = format!("{}/instances/{instance}/api/v2/status", server.url);
    assert!(reqwest::get(&by_instance).await.unwrap().status().is_success());
    server.ok(&format!("/http_gateway/{number}/stop"), &Value::Null).await;
    assert!(reqwest::get(&status).await.is_err());
    assert_eq!(server.get("/http_gateway").await.1, json!([]));
    for (config, words) in [
        (json!({"forward_to": {"Replica": "http://127.0.0.1:1"}}), "not offered"),
        (json!({"forward_to": {"PocketIcInstance": 9}}), "no instance"),
        (json!({"forward_to": {"PocketIcInstance": instance}, "https_config": {}}), "TLS"),
    ] {
        let (status, answer) = server.post("/http_gateway", &config).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(answer["Error"]["message"].as_str().unwrap().contains(words), "{answer}");
    }
    // An instance takes its gateways with it.
    let created = server.ok("/http_gateway", &asked).await;
    let port = &created["Created"]["port"];
    assert!(server.delete(&format!("/instances/{instance}")).await.is_success());
    assert!(reqwest::get(format!("http://127.0.0.1:{port}/api/v2/status")).await.is_err());
}

#[tokio::test]
async fn a_round_comes_when_it_is_asked_for_and_the_same_calls_give_the_same() {
    let server = Server::start(&[]);
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let instance = server.instance(&one_subnet()).await;
        server.deploy(instance, &module("workbench.wasm")).await;
        let none = candid::encode_args(()).unwrap();
        let random = server.update(instance, &call(&FIRST, "raw_rand_via_mgmt", &none)).await;
        let (_, time) = server.get(&format!("/instances/{instance}/read/get_time")).await;
        outcomes.push((random, time));
    }
    assert_eq!(outcomes[0], outcomes[1], "randomness and time are those of the instance");
}
