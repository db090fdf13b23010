//! What outsiders may send: each gets the answer the specification names, and the node goes on.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use candid::{Decode, Encode};
use ic_management_canister_types::CanisterInstallMode;

use crate::{harness::*, http::post};

async fn still_counts(node: &Node) {
    let agent = node.agent(9).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    assert_eq!(update(&agent, counter, "inc", vec![]).await.unwrap(), 1u64.to_le_bytes());
}

#[tokio::test]
async fn malformed_and_misaddressed_requests_are_refused_with_a_reason() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    let other = deploy(&agent, "counter-c.wasm").await;
    let url = format!("{}/api/v4/canister/{counter}/call", node.url);
    let good = || agent.update(&counter, "inc").with_arg(vec![]).sign().unwrap().signed_update;

    for body in
        [vec![], b"not cbor".to_vec(), vec![0x9f; 100_000], vec![0xd9, 0xd9, 0xf7], good()[..40].to_vec()]
    {
        let (code, text) = post(url.clone(), body).await;
        assert_eq!(code, 400, "{}", String::from_utf8_lossy(&text));
        assert!(!text.is_empty());
    }
    // Wrong content type.
    let response = reqwest::Client::new()
        .post(&url)
        .header("content-type", "text/plain")
        .body(good())
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 415);
    assert!(response.text().await.unwrap().contains("application/cbor"));
    // Too large, told without reading it all.
    let (code, text) = post(url.clone(), vec![0; 6 << 20]).await;
    assert_eq!(code, 413);
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(text.contains("body_bytes") || text.contains("MiB") || text.contains("4194304"), "{text}");
    // Wrong signature: flip a bit in the last bytes, where the signature is.
    let mut forged = good();
    let end = forged.len() - 5;
    forged[end] ^= 1;
    let (code, _) = post(url.clone(), forged).await;
    assert!(code == 400 || code == 403, "{code}");
    // For another canister.
    let (code, _) = post(format!("{}/api/v4/canister/{other}/call", node.url), good()).await;
    assert_eq!(code, 400);
    // Expired, and too far ahead.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    for when in [now - Duration::from_secs(3600), now + Duration::from_secs(3600)] {
        let nanos = when.as_nanos() as u64;
        let at = std::time::UNIX_EPOCH + Duration::from_nanos(nanos);
        let signed = agent.update(&counter, "inc").with_arg(vec![]).expire_at(at).sign().unwrap();
        let (code, text) = post(url.clone(), signed.signed_update).await;
        assert_eq!(code, 400);
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(text.contains("expir"), "{text}");
    }
    // No such place, no such method.
    assert_eq!(post(format!("{}/api/v9/canister/{counter}/call", node.url), good()).await.0, 404);
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 405);
    assert_eq!(query(&agent, counter, "get", vec![]).await.unwrap(), 0u64.to_le_bytes());
    still_counts(&node).await;
}

#[tokio::test]
async fn modules_that_are_no_canisters_are_refused_with_the_limit() {
    let node = Node::start().await;
    let agent = node.agent(1).await;
    let canister = create(&agent).await;
    let functions = format!("(module {})", "(func)".repeat(60_000));
    let globals = format!("(module {})", "(global (mut i32) (i32.const 0))".repeat(1_500));
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", vec![], ""),
        ("no wasm", b"no wasm at all".to_vec(), ""),
        ("cut short", std::fs::read(fixture("counter-c.wasm")).unwrap()[..200].to_vec(), ""),
        ("functions", wat::parse_str(functions).unwrap(), "50000"),
        ("globals", wat::parse_str(globals).unwrap(), "1000"),
        ("table", wat::parse_str("(module (table 4000000 funcref))").unwrap(), "65536"),
        ("memory", wat::parse_str("(module (memory 70000))").unwrap_or_default(), ""),
        ("import", wat::parse_str("(module (import \"env\" \"f\" (func)))").unwrap(), "env"),
        (
            "signature",
            wat::parse_str("(module (import \"ic0\" \"msg_reply\" (func (param i32))))").unwrap(),
            "msg_reply",
        ),
        ("start traps", wat::parse_str("(module (func $s unreachable) (start $s))").unwrap(), ""),
        ("gzip bomb", gzip_bomb(), "bytes"),
    ];
    for (name, module, expected) in cases {
        let error = install(&agent, canister, CanisterInstallMode::Install, module, Encode!().unwrap()).await;
        let (code, text, _) = rejected(error.expect_err(name));
        assert!((4..=5).contains(&code), "{name}: {code} {text}");
        assert!(text.replace([',', '_'], "").contains(&expected.replace('_', "")), "{name}: {text}");
    }
    still_counts(&node).await;
}

/// 300 MB of zeros in 300 kB.
fn gzip_bomb() -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![0; 1 << 20];
    for _ in 0..300 {
        encoder.write_all(&zeros).unwrap();
    }
    encoder.finish().unwrap()
}

#[tokio::test]
async fn a_canister_that_grows_without_end_is_stopped_by_its_cap() {
    let node = Node::start_with("256MiB").await;
    let agent = node.agent(1).await;
    let bench = deploy(&agent, "workbench.wasm").await;
    // 16 GiB of stable memory fit no subnet of this size: refused, not granted.
    let reply = update(&agent, bench, "stable_grow", Encode!(&(16u64 << 30 >> 16)).unwrap()).await.unwrap();
    assert_eq!(Decode!(&reply, u64).unwrap(), u64::MAX);
    let error = update(&agent, bench, "grow_heap", Encode!(&8_000u64).unwrap()).await;
    if let Ok(reply) = &error {
        assert!(Decode!(reply, u64).unwrap() < 4 << 30);
    }
    still_counts(&node).await;
}
