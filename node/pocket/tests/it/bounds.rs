//! Bounds of the server, and removal of an instance's resources.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::*;

/// Processes that the server started and that are there.
fn workers(server: &Server) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    let children = tasks.map(|task| {
        let path = task.unwrap().path().join("children");
        std::fs::read_to_string(path).unwrap_or_default().split_whitespace().count()
    });
    children.sum()
}

// Promise: P15 - Instances beyond the memory budget are refused with the limit.
#[tokio::test]
async fn instances_are_bounded_by_the_memory_and_the_limit_is_named() {
    let server = Server::start(&["--memory", "156MiB"]);
    let mut made = Vec::new();
    let refusal = loop {
        let (status, answer) = server.post("/instances", &one_subnet()).await;
        if status == StatusCode::BAD_REQUEST {
            break answer["Error"]["message"].as_str().unwrap().to_owned();
        }
        made.push(answer["Created"]["instance_id"].as_u64().unwrap());
    };
    assert!((1..=3).contains(&made.len()), "{made:?}");
    let limit = "in 156 MiB (`--memory`, THIMBLE_POCKET_MEMORY)";
    assert!(refusal.starts_with(&format!("{} instance", made.len())), "{refusal}");
    assert!(refusal.contains(limit), "{refusal}");
    // One that goes makes room for another.
    assert!(server.delete(&format!("/instances/{}", made[0])).await.is_success());
    server.instance(&one_subnet()).await;
}

// Promise: P15 - Connections without a request do not exclude clients of `thimble-pocket`.
#[tokio::test]
async fn idle_connections_up_to_the_limit_are_closed_for_new_ones() {
    let server = Server::start(&[]);
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    // The limit of the server.
    let idle: Vec<_> = (0..512).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    for _ in 0..4 {
        let answered = reqwest::get(format!("http://{address}/status")).await.unwrap();
        assert_eq!(answered.status(), StatusCode::OK);
    }
    drop(idle);
}

// Promise: P15 - A deleted instance leaves no process and no file.
#[tokio::test]
async fn an_instance_leaves_nothing_behind() {
    let server = Server::start(&[]);
    let before = workers(&server);
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("counter-c.wasm")).await;
    assert!(workers(&server) > before);
    assert_eq!(server.instance_folders(), 1);
    assert!(server.delete(&format!("/instances/{instance}")).await.is_success());
    testing::until("its workers end", || workers(&server) == before);
    assert_eq!(server.instance_folders(), 0);
    assert_eq!(server.delete(&format!("/instances/{instance}")).await, StatusCode::NOT_FOUND);
    let (_, list) = server.get("/instances").await;
    assert_eq!(list, json!(["Deleted"]));
    let folder = server.stop();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

// Promise: P15 - A stable memory too long for an answer is refused with the limit.
#[tokio::test]
async fn a_stable_memory_that_is_too_long_for_an_answer_is_refused_with_the_limit() {
    let server = Server::start(&["--memory", "512MiB"]);
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    let path = format!("/instances/{instance}/read/get_stable_memory");
    let asked = json!({"canister_id": base64(&FIRST)});
    let grow = async |pages: u64| {
        let grow = call(&FIRST, "stable_grow", &candid::encode_one(pages).unwrap());
        let answer = server.update(instance, &grow).await;
        candid::decode_one::<u64>(&unbase64(&answer["Ok"])).unwrap()
    };
    assert_ne!(grow(150).await, u64::MAX);
    let answer = server.ok(&path, &asked).await;
    assert!(unbase64(&answer["blob"]).len() >= 150 << 16);
    assert_ne!(grow(50).await, u64::MAX);
    let refusal = server.refusal(&path, &asked).await;
    assert!(refusal.contains("stable_answer_bytes = 11184810"), "{refusal}");
}

#[test]
fn a_budget_without_room_for_an_instance_is_refused() {
    let output = program().args(["--memory", "64MiB"]).output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("the least is"), "{text}");
}

// Promise: P15 - An instance with too many requests answers 409.
#[tokio::test]
async fn an_instance_that_many_ask_at_once_says_that_it_is_busy() {
    let server = std::sync::Arc::new(Server::start(&[]));
    let instance = server.instance(&one_subnet()).await;
    server.deploy(instance, &module("workbench.wasm")).await;
    let at = format!("/instances/{instance}");
    let spin = call(&FIRST, "spin", &candid::encode_one(8_000_000_000_u64).unwrap());
    let submitted = server.ok(&format!("{at}/update/submit_ingress_message"), &spin).await;
    let awaited = format!("{at}/update/await_ingress_message");
    let (status, _) = server.post_waiting(&awaited, &submitted["Ok"], Some(1)).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    // More than wait at once: some clients are asked to poll, none is lost.
    let ticks: Vec<_> = (0..80)
        .map(|_| {
            let (server, path) = (server.clone(), format!("{at}/update/tick"));
            tokio::spawn(async move { server.post_waiting(&path, &json!({}), Some(1)).await })
        })
        .collect();
    let mut told = std::collections::BTreeMap::new();
    for tick in ticks {
        let (status, answer) = tick.await.unwrap();
        assert!(answer["state_label"].is_string() || answer == Value::Null, "{answer}");
        *told.entry(status.as_u16()).or_insert(0) += 1;
    }
    assert!(told.get(&409).is_some_and(|busy| *busy >= 80 - 64 - 1), "{told:?}");
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_with_the_limit() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let long = call(&FIRST, "m", &vec![0; 4 << 20]);
    let path = format!("/instances/{instance}/update/submit_ingress_message");
    let (status, answer) = server.post(&path, &long).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(answer["message"].as_str().unwrap().contains("body_bytes"), "{answer}");
    // A longer message than there may be is rejected in a body that is read.
    let long = vec![0; 5 << 19];
    let long = call(&[], "provisional_create_canister_with_cycles", &long);
    let answer = server.update(instance, &long).await;
    let message = answer["Err"]["reject_message"].as_str().unwrap();
    assert!(message.contains("message_payload_bytes"), "{message}");
}

// Promise: P15 - A blob that arrives slowly is refused with the rate that it must have.
#[test]
fn a_blob_that_drips_is_refused_with_the_least_rate() {
    let server = Server::start(&[]);
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    let head = "POST /blobstore HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let (started, mut dripping) = (Instant::now(), stream.try_clone().unwrap());
    // A byte each second is more than the time between two bytes may be.
    let dripper = std::thread::spawn(move || {
        while dripping.write_all(b"b").is_ok() {
            std::thread::sleep(Duration::from_secs(1));
        }
    });
    let mut refused = Vec::new();
    // The byte after the refusal resets the connection.
    let _ = stream.set_read_timeout(Some(testing::TIMEOUT));
    let _ = stream.read_to_end(&mut refused);
    let refused = String::from_utf8_lossy(&refused);
    assert!(refused.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{refused}");
    assert!(refused.contains("connection: close\r\n"), "{refused}");
    assert!(refused.contains("blob_rate_min = 1048576 bytes per second"), "{refused}");
    assert!(started.elapsed() < testing::TIMEOUT, "{:?}", started.elapsed());
    dripper.join().unwrap();
}
