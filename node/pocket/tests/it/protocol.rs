//! The protocol, where the clients do not go by themselves.

use std::os::unix::fs::PermissionsExt as _;

use reqwest::{
    Method, StatusCode,
    header::{CONTENT_TYPE, USER_AGENT},
};
use serde_json::{Value, json};

use crate::harness::*;

/// A nanosecond later than an instance can be.
const LATE: u64 = 1 << 63;

#[test]
fn the_version_is_one_that_clients_take() {
    let output = program().arg("--version").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let version = text.trim_end_matches('\n').strip_prefix("pocket-ic-server ").unwrap();
    let parts: Vec<u64> = version.split('.').map(|part| part.parse().unwrap()).collect();
    assert_eq!(parts.len(), 3, "{version}");
    assert_eq!(parts[0], 16, "pocket-ic 16 takes 16.0.0 and above, below 17");
}

// Promise: P10 - `--version` is that of the client that the environment names (13 to 16).
#[test]
fn the_version_is_that_of_the_clients_that_are_named() {
    let output = |client: &str| {
        program().arg("--version").env("THIMBLE_POCKET_CLIENT", client).output().unwrap()
    };
    for (client, version) in [("13", "13.0.0"), ("14", "14.0.0"), ("15", "15.0.0")] {
        let text = String::from_utf8(output(client).stdout).unwrap();
        assert_eq!(text, format!("pocket-ic-server {version}\n"));
    }
    let unknown = output("12");
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("13, 14, 15, 16"));
}

#[test]
fn the_manual_is_that_of_the_program_by_its_own_name() {
    let share = tempfile::tempdir().unwrap();
    let output = program().args(["manual", "--share"]).arg(share.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(share.path().join("man/man1/thimble-pocket.1")).unwrap();
    assert!(page.contains("thimble\\-pocket") && page.contains("hard\\-ttl"), "{page}");
    for file in [
        "bash-completion/completions/thimble-pocket",
        "zsh/vendor-completions/_thimble-pocket",
        "fish/vendor_completions.d/thimble-pocket.fish",
    ] {
        let text = std::fs::read_to_string(share.path().join(file)).unwrap();
        assert!(text.contains("thimble-pocket") && !text.contains("pocket-ic-server"), "{file}");
    }
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

// Promise: P10 - A long operation of `thimble-pocket` returns 202 and is polled for.
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
    // Clients would ask again after 404.
    for name in [name, "started/77".to_owned()] {
        let (status, answer) = server.get(&format!("/read_graph/{name}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(answer["message"].as_str().unwrap().contains("answers_kept_bytes"), "{answer}");
    }
}

// Promise: P15 - An invalid request to `thimble-pocket` is refused with the reason.
#[tokio::test]
async fn invalid_request_is_refused_with_the_reason() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let at = format!("/instances/{instance}");
    for (path, body, words) in [
        ("update/set_time", json!({"nanos_since_epoch": 5}), "SettingTimeIntoPast"),
        ("update/set_time", json!({"nanos_since_epoch": LATE}), "the latest"),
        ("update/set_certified_time", json!({"nanos_since_epoch": LATE}), "the latest"),
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

// Promise: P10 - Operations that `thimble-pocket` does not offer are refused in the terms of the
//   protocol.
#[tokio::test]
async fn what_is_not_offered_is_refused_in_the_protocols_terms() {
    let server = Server::start(&[]);
    let mut config = one_subnet();
    for (field, value, words) in [
        ("bitcoind_addr", json!(["127.0.0.1:8333"]), "Bitcoin"),
        ("icp_features", json!({"registry": "DefaultConfig"}), "registry"),
        ("mainnet_nns_subnet_id", json!(true), "NNS"),
        ("disable_ingress_validation", json!(true), "validation"),
        ("initial_time", json!({"Timestamp": {"nanos_since_epoch": LATE}}), "the latest"),
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

#[tokio::test]
async fn a_certified_time_is_that_of_a_round() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    let at = format!("/instances/{instance}");
    let asked = call(&FIRST, "time", &candid::encode_args(()).unwrap());
    let (_, before) = server.get(&format!("{at}/read/get_time")).await;
    let time = json!({"nanos_since_epoch": before["nanos_since_epoch"].as_u64().unwrap() + 1_000});
    for (set, expected) in
        [("set_time", &before), ("set_certified_time", &time), ("set_certified_time", &time)]
    {
        server.ok(&format!("{at}/update/{set}"), &time).await;
        assert_eq!(server.get(&format!("{at}/read/get_time")).await.1, time);
        let answer = server.ok(&format!("{at}/read/query"), &asked).await;
        let told: u64 = candid::decode_one(&unbase64(&answer["Ok"])).unwrap();
        assert_eq!(told, expected["nanos_since_epoch"].as_u64().unwrap(), "{set}");
    }
}

// Promise: P10 - A round has the set time, or one nanosecond after the last round.
#[tokio::test]
async fn a_round_has_the_time_that_was_set_or_comes_a_nanosecond_later() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let at = format!("/instances/{instance}");
    let now = async || {
        let (_, time) = server.get(&format!("{at}/read/get_time")).await;
        time["nanos_since_epoch"].as_u64().unwrap()
    };
    let begun = now().await;
    let set = async |time: u64| {
        let time = json!({ "nanos_since_epoch": time });
        server.ok(&format!("{at}/update/set_time"), &time).await;
    };
    let tick = async || server.ok(&format!("{at}/update/tick"), &json!({})).await;
    assert_eq!(begun, 1_620_328_630_000_000_001, "the first round comes with the instance");
    tick().await;
    assert_eq!(now().await, begun + 1);
    for later in [1_000, 1_000_000_000] {
        let time = now().await + later;
        set(time).await;
        assert_eq!(now().await, time);
        tick().await;
        assert_eq!(now().await, time);
        tick().await;
        assert_eq!(now().await, time + 1);
    }
    // The same time is not later.
    let time = now().await;
    set(time).await;
    tick().await;
    assert_eq!(now().await, time + 1);
}

#[tokio::test]
async fn a_tick_of_the_python_client_completes_a_long_message() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    let at = format!("/instances/{instance}");
    let json = (CONTENT_TYPE, "application/json");
    for (agent, is_complete) in [("node", false), ("python-requests/2.34.2", true)] {
        let spin = call(&FIRST, "spin", &candid::encode_one(4_000_000_000_u64).unwrap());
        let submitted = server.ok(&format!("{at}/update/submit_ingress_message"), &spin).await;
        let headers = [(USER_AGENT, agent), json.clone()];
        let tick = format!("{at}/update/tick");
        let answer = server.send(Method::POST, &tick, &headers, Some(&json!({}))).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let asked = json!({"raw_message_id": submitted["Ok"], "raw_caller": null});
        let status = server.ok(&format!("{at}/read/ingress_status"), &asked).await;
        assert_eq!(status.get("Ok").is_some(), is_complete, "{agent}: {status}");
        server.ok(&format!("{at}/update/await_ingress_message"), &submitted["Ok"]).await;
    }
}

#[derive(candid::CandidType)]
struct Provisional {
    amount: Option<candid::Nat>,
    specified_id: Option<candid::Principal>,
    settings: Option<ic_management_canister_types::CanisterSettings>,
}

#[derive(candid::CandidType, candid::Deserialize)]
struct CreatedCanister {
    canister_id: candid::Principal,
}

/// Makes a canister with these cycles; its id, or the reject.
async fn create(server: &Server, asked: Provisional) -> Result<candid::Principal, Value> {
    let arg = candid::encode_one(asked).unwrap();
    let create = call(&[], "provisional_create_canister_with_cycles", &arg);
    let answer = server.update(0, &create).await;
    let Some(reply) = answer.get("Ok") else { return Err(answer["Err"].clone()) };
    Ok(candid::decode_one::<CreatedCanister>(&unbase64(reply)).unwrap().canister_id)
}

const LEDGER: &str = "ryjl3-tyaaa-aaaaa-aaaba-cai";

fn without_cycles(specified_id: Option<&str>) -> Provisional {
    let specified_id = specified_id.map(|id| candid::Principal::from_text(id).unwrap());
    Provisional { amount: Some(0_u64.into()), specified_id, settings: None }
}

// Promise: P10 - A call for a canister id without subnet creates the subnet.
#[tokio::test]
async fn a_subnet_is_made_for_a_canister_id_that_a_call_without_effective_principal_asks_for() {
    let server = Server::start(&[]);
    server.instance(&one_subnet()).await;
    for asked in ["i3flu-baaaa-aaaai-aaaaa-cai", LEDGER] {
        let made = create(&server, without_cycles(Some(asked))).await.unwrap();
        assert_eq!(made.to_text(), asked);
        let asked = json!({"canister_id": base64(made.as_slice())});
        let subnet = server.ok("/instances/0/read/get_subnet", &asked).await;
        assert!(subnet["subnet_id"].is_string(), "{subnet}");
    }
    let (_, topology) = server.get("/instances/0/read/topology").await;
    assert_eq!(topology["subnet_configs"].as_object().unwrap().len(), 3);
    // The default is the application subnet, as before.
    let made = create(&server, without_cycles(None)).await.unwrap();
    assert_eq!(made.as_slice(), FIRST);
}

// Promise: P10 - Canisters on system subnets pay nothing.
#[tokio::test]
async fn canisters_on_system_subnets_pay_nothing() {
    let server = Server::start(&[]);
    let spec = json!({"state_config": "New", "instruction_config": "Production"});
    let config = json!({"subnet_config_set": {"nns": spec, "application": [spec]}});
    server.instance(&config).await;
    let ledger = create(&server, without_cycles(Some(LEDGER))).await.unwrap();
    server.install(0, ledger.as_slice(), &module("workbench.wasm")).await;
    // It makes another one for nothing, as the ledger does with its archive.
    let none = serde_bytes::ByteBuf::from(b"DIDL\0\0".to_vec());
    let management = candid::Principal::management_canister();
    let arg = (management, "create_canister", none, candid::Nat::from(0_u64));
    let arg = candid::encode_args(arg).unwrap();
    let answer = server.update(0, &call(ledger.as_slice(), "call_raw", &arg)).await;
    #[derive(Debug, candid::CandidType, candid::Deserialize)]
    enum CallResult {
        Ok(serde_bytes::ByteBuf),
        Err(String),
    }
    let made = match candid::decode_one(&unbase64(&answer["Ok"])).unwrap() {
        CallResult::Ok(reply) => candid::decode_one::<CreatedCanister>(&reply).unwrap().canister_id,
        CallResult::Err(reason) => panic!("{reason}"),
    };
    // Neither calls, nor storage for a year, nor outgoing calls cost anything.
    let (_, now) = server.get("/instances/0/read/get_time").await;
    let year = now["nanos_since_epoch"].as_u64().unwrap() + 31_536_000_000_000_000;
    server.ok("/instances/0/update/set_time", &json!({ "nanos_since_epoch": year })).await;
    let random = candid::encode_args(()).unwrap();
    let answer = server.update(0, &call(ledger.as_slice(), "raw_rand_via_mgmt", &random)).await;
    assert!(answer.get("Ok").is_some(), "{answer}");
    for id in [ledger, made] {
        let asked = json!({"canister_id": base64(id.as_slice())});
        let cycles = server.ok("/instances/0/read/get_cycles", &asked).await;
        assert_eq!(cycles["cycles"], 0);
    }
    // On an application subnet they pay.
    let poor = create(&server, without_cycles(None)).await.unwrap();
    let install = candid::encode_one(ic_management_canister_types::InstallCodeArgs {
        mode: ic_management_canister_types::CanisterInstallMode::Install,
        canister_id: poor,
        wasm_module: module("counter-c.wasm"),
        arg: vec![],
        sender_canister_version: None,
    });
    let install = call(&[], "install_code", &install.unwrap());
    let submitted = server.ok("/instances/0/update/submit_ingress_message", &install).await;
    assert_eq!(submitted["Err"]["error_code"], "CanisterOutOfCycles", "{submitted}");
}

// Promise: P10 - Allocations on `thimble-pocket` follow the free space of the disk.
#[tokio::test]
async fn allocations_of_several_gigabytes_follow_the_disk() {
    let server = Server::start(&[]);
    server.instance(&one_subnet()).await;
    let with = |bytes: u64| Provisional {
        amount: None,
        specified_id: None,
        settings: Some(ic_management_canister_types::CanisterSettings {
            memory_allocation: Some(bytes.into()),
            ..Default::default()
        }),
    };
    create(&server, with(3 << 30)).await.unwrap();
    let reject = create(&server, with(1 << 60)).await.unwrap_err();
    let message = reject["reject_message"].as_str().unwrap();
    assert!(message.contains("subnet.memory_capacity_bytes"), "{message}");
}

// Promise: P10 - Each instance has a dashboard with its canisters.
#[tokio::test]
async fn the_dashboard_shows_the_canisters_of_an_instance() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("counter-c.wasm")).await;
    let path = format!("/instances/{instance}/_/dashboard");
    let answer = server.send(Method::GET, &path, &[], None).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
    let policy = answer.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    let page = answer.text().await.unwrap();
    for text in ["lxzze-o7777-77777-aaaaa-cai", "Application", "running"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let (status, _) = server.get("/instances/7/_/dashboard").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_instance_makes_progress_however_often_it_is_asked() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let at = format!("/instances/{instance}");
    server.ok(&format!("{at}/auto_progress"), &json!({})).await;
    let (_, before) = server.get(&format!("{at}/read/get_time")).await;
    let until = std::time::Instant::now() + testing::TIMEOUT;
    while server.get(&format!("{at}/read/get_time")).await.1 == before {
        assert!(std::time::Instant::now() < until, "no round comes");
    }
}

fn in_folder(folder: &std::path::Path) -> Value {
    let mut config = one_subnet();
    config["state_dir"] = json!(folder);
    config
}

async fn creation_refusal(server: &Server, config: &Value) -> String {
    let (status, answer) = server.post("/instances", config).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    answer["Error"]["message"].as_str().unwrap().to_owned()
}

// Promise: P5 - One instance at a time keeps a folder of `thimble-pocket`.
#[tokio::test]
async fn a_folder_is_one_instances_at_a_time() {
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    let kept = tempfile::tempdir().unwrap();
    let config = in_folder(kept.path());
    let instance = server.instance(&config).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    for server in [&server, &other] {
        let refusal = creation_refusal(server, &config).await;
        assert!(refusal.contains("another instance uses it"), "{refusal}");
    }
    assert_eq!(server.deleted(instance).await.0, StatusCode::OK);
    let mut kept_files = std::fs::read_dir(kept.path()).unwrap().map(Result::unwrap).peekable();
    assert!(kept_files.peek().is_some());
    for file in kept_files {
        let mode = file.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", file.path().display());
    }
    let instance = other.instance(&config).await;
    let path = format!("/instances/{instance}/read/get_cycles");
    other.ok(&path, &json!({"canister_id": base64(&FIRST)})).await;
    // A relative path is one of the server's working directory.
    server.instance(&in_folder(std::path::Path::new("relative"))).await;
    assert!(server.folder().join("relative").is_dir());
}

// Promise: P5 - SIGHUP stops `thimble-pocket`, and kept instances are saved.
#[tokio::test]
async fn hangup_keeps_instances_like_any_other_stop() {
    let server = Server::start(&[]);
    let kept = tempfile::tempdir().unwrap();
    let instance = server.instance(&in_folder(kept.path())).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    server.stop_by(testing::process::Signal::HUP);
    assert!(kept.path().join("thimble-pocket.state").is_file());
    let server = Server::start(&[]);
    let again = server.instance(&in_folder(kept.path())).await;
    let path = format!("/instances/{again}/read/get_cycles");
    server.ok(&path, &json!({"canister_id": base64(&FIRST)})).await;
}

// Promise: P5 - An instance that cannot be saved is reported and kept where a later start continues
//   it.
#[tokio::test]
async fn instance_that_cannot_be_archived_reports_the_error() {
    let server = Server::start(&[]);
    let kept = tempfile::tempdir().unwrap();
    let instance = server.instance(&in_folder(kept.path())).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    // A folder where the file is to be.
    std::fs::create_dir_all(kept.path().join("thimble-pocket.state/x")).unwrap();
    let (status, answer) = server.deleted(instance).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    let told = answer["message"].as_str().unwrap();
    assert!(told.contains("keeping the instance"), "{told}");
    assert_eq!(server.deleted(instance).await.0, StatusCode::NOT_FOUND);
    // It is not lost: its state is where the answer says, and continues there, even after the
    // server's end.
    let left = told.split_once("its state was left in ").unwrap().1.split(',').next().unwrap();
    assert_eq!(std::path::Path::new(left).parent(), Some(server.folder()));
    let outside = tempfile::tempdir().unwrap();
    let moved = outside.path().join("moved");
    std::fs::rename(left, &moved).unwrap();
    server.stop();
    let server = Server::start(&[]);
    let again = server.instance(&in_folder(&moved)).await;
    let path = format!("/instances/{again}/read/get_cycles");
    server.ok(&path, &json!({"canister_id": base64(&FIRST)})).await;
    assert_eq!(server.deleted(again).await.0, StatusCode::OK);
    assert!(moved.join("thimble-pocket.state").is_file());
    // Whether there is a folder is known before there is an instance.
    let file = kept.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let refusal = creation_refusal(&server, &in_folder(&file)).await;
    assert!(refusal.contains("state_dir"), "{refusal}");
}

// Promise: P15 - Clients that disconnect leave no instance behind and lose no kept one.
#[tokio::test]
async fn clients_that_leave_are_served_to_the_end() {
    let server = Server::start(&[]);
    // An unclaimed instance must be deleted by the server.
    server.send_and_leave("POST", "/instances", &one_subnet().to_string());
    let kept = tempfile::tempdir().unwrap();
    let instance = server.instance(&in_folder(kept.path())).await;
    testing::until("the unclaimed instance is gone", || server.instance_folders() == 1);
    let (_, list) = server.get("/instances").await;
    let is_there = list.as_array().unwrap().iter().filter(|state| **state == "Available").count();
    assert_eq!(is_there, 1, "{list}");
    server.send_and_leave("DELETE", &format!("/instances/{instance}"), "");
    let file = kept.path().join("thimble-pocket.state");
    testing::until("the instance is kept", || file.exists());
    testing::until("its folder is gone", || server.instance_folders() == 0);
    // One that is being deleted when the server ends is kept as well.
    let instance = server.instance(&in_folder(kept.path())).await;
    std::fs::remove_file(&file).unwrap();
    server.send_and_leave("DELETE", &format!("/instances/{instance}"), "");
    server.stop();
    assert!(file.exists());
}
