//! Chapters "Certification" and "The system state tree", and "Request: Read state" of the HTTPS
//! interface.

use candid::{Encode, Principal};
use ic_agent::{Agent, hash_tree::Label};
use ic_certification::{Certificate, LookupResult};
use ic_management_canister_types::{CanisterInstallMode, ProvisionalCreateCanisterWithCyclesArgs};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{fixture::*, http::post, management::status, program::*};

type Path<'a> = &'a [&'a [u8]];

/// Target of the endpoint: a canister's id or the subnet's.
#[derive(Clone, Copy)]
enum At {
    Canister(Principal),
    Subnet(Principal),
}

fn subnet(world: &World) -> Principal {
    Principal::self_authenticating(world.agent.read_root_key())
}

#[derive(Deserialize)]
struct Answer {
    #[serde(with = "serde_bytes")]
    certificate: Vec<u8>,
}

/// A signed request for these paths.
fn signed(agent: &Agent, paths: &[Path<'_>]) -> Vec<u8> {
    let paths: Vec<Vec<Label<Vec<u8>>>> = paths
        .iter()
        .map(|path| path.iter().map(|label| Label::from_bytes(label)).collect())
        .collect();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let content = ic_agent::agent::EnvelopeContent::ReadState {
        ingress_expiry: now.as_nanos() as u64 + 120_000_000_000,
        sender: agent.get_principal().unwrap(),
        paths,
    };
    super::http::envelope(agent, content)
}

/// Reads these paths: the verified certificate, or the HTTP status of the refusal.
async fn read(
    world: &World,
    agent: &Agent,
    at: At,
    version: u32,
    paths: &[Path<'_>],
) -> Result<Certificate, u16> {
    let (kind, id) = match at {
        At::Canister(id) => ("canister", id),
        At::Subnet(id) => ("subnet", id),
    };
    let url = format!("{}/api/v{version}/{kind}/{id}/read_state", world.url);
    let (status, body) = post(url, signed(agent, paths)).await;
    if status != 200 {
        assert!((400..500).contains(&status), "{status}");
        return Err(status);
    }
    let answer: Answer = serde_cbor_2::from_slice(&body).unwrap();
    let certificate: Certificate = serde_cbor_2::from_slice(&answer.certificate).unwrap();
    let verified = match at {
        At::Canister(id) => world.agent.verify(&certificate, id),
        At::Subnet(id) => world.agent.verify_for_subnet(&certificate, id),
    };
    verified.unwrap();
    Ok(certificate)
}

/// One path about a canister, at its own id.
async fn of_canister(world: &World, agent: &Agent, id: Principal, rest: Path<'_>) -> ReadOutcome {
    let path = [&[b"canister".as_slice(), id.as_slice()], rest].concat();
    match read(world, agent, At::Canister(id), 3, &[&path]).await {
        Ok(certificate) => find(&certificate, &path),
        Err(_) => ReadOutcome::Refused,
    }
}

#[derive(Debug, PartialEq)]
enum ReadOutcome {
    Value(Vec<u8>),
    Absent,
    Unknown,
    Refused,
}

fn find(certificate: &Certificate, path: Path<'_>) -> ReadOutcome {
    match certificate.tree.lookup_path(path) {
        LookupResult::Found(value) => ReadOutcome::Value(value.to_vec()),
        LookupResult::Absent => ReadOutcome::Absent,
        LookupResult::Unknown | LookupResult::Error => ReadOutcome::Unknown,
    }
}

#[track_caller]
fn value(found: ReadOutcome) -> Vec<u8> {
    match found {
        ReadOutcome::Value(value) => value,
        other => panic!("{other:?}"),
    }
}

/// A natural number of the tree.
fn natural(bytes: &[u8]) -> u64 {
    let digits = bytes.iter().rev().map(|byte| u64::from(byte & 0x7f));
    digits.fold(0, |number, digit| number << 7 | digit)
}

/// Principals of a canister id range or a list, after the tag of CBOR.
fn untagged<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> T {
    assert_eq!(bytes[..3], [0xd9, 0xd9, 0xf7], "the tag 55799");
    serde_cbor_2::from_slice(bytes).unwrap()
}

// The tree.

#[test]
fn every_certificate_reveals_the_time() {
    run(async |world| {
        let canister = world.canister().await;
        for at in [At::Canister(canister.id), At::Subnet(subnet(world))] {
            for version in [2, 3] {
                let certificate = read(world, &world.anonymous, at, version, &[]).await.unwrap();
                let time = natural(&value(find(&certificate, &[b"time"])));
                let now = std::time::SystemTime::now();
                let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
                assert!(time.abs_diff(now) < 300_000_000_000, "{time} at {now}");
            }
        }
    });
}

#[test]
fn the_certificates_of_the_root_subnet_have_no_delegation() {
    run(async |world| {
        let at = At::Subnet(subnet(world));
        let certificate = read(world, &world.anonymous, at, 3, &[&[b"time"]]).await.unwrap();
        assert!(certificate.delegation.is_none());
    });
}

#[test]
fn module_hash_is_that_of_the_module_and_absent_without_one() {
    run(async |world| {
        let canister = world.canister().await;
        let read = async |id| of_canister(world, &world.anonymous, id, &[b"module_hash"]).await;
        assert_eq!(value(read(canister.id).await), Sha256::digest(module()).to_vec());
        world.about(canister.id, "uninstall_code").await.unwrap();
        assert_eq!(read(canister.id).await, ReadOutcome::Absent);
    });
}

#[test]
fn controllers_are_a_list_of_principals_in_tagged_cbor() {
    run(async |world| {
        let canister = world.canister().await;
        let told = of_canister(world, &world.anonymous, canister.id, &[b"controllers"]).await;
        let told: Vec<serde_bytes::ByteBuf> = untagged(&value(told));
        let expected = world.agent.get_principal().unwrap();
        assert_eq!(told, [serde_bytes::ByteBuf::from(expected.as_slice())]);
    });
}

#[test]
fn the_times_of_creation_and_of_the_last_installation_are_in_the_tree() {
    run(async |world| {
        let canister = world.canister().await;
        let read = async |name: &[u8]| {
            let found = of_canister(world, &world.anonymous, canister.id, &[name]).await;
            natural(&value(found))
        };
        let created = read(b"canister_creation_timestamp").await;
        let installed = read(b"last_install_timestamp").await;
        assert!(created <= installed, "{created} {installed}");
        let mode = CanisterInstallMode::Upgrade(None);
        world.install(canister.id, mode, module(), vec![]).await.unwrap();
        assert_eq!(read(b"canister_creation_timestamp").await, created);
        assert!(read(b"last_install_timestamp").await > installed);
    });
}

/// A module with one public and one private section.
fn sections() -> Vec<u8> {
    let text = "(module (@custom \"icp:public open\" \"for all\") \
                (@custom \"icp:private closed\" \"for few\"))";
    wat::parse_str(text).unwrap()
}

#[test]
fn public_metadata_is_for_everyone_and_private_for_controllers() {
    run(async |world| {
        let canister = world.empty().await;
        let mode = CanisterInstallMode::Install;
        world.install(canister, mode, sections(), vec![]).await.unwrap();
        let read = async |agent: &Agent, name: &str| {
            of_canister(world, agent, canister, &[b"metadata", name.as_bytes()]).await
        };
        assert_eq!(value(read(&world.agent, "open").await), b"for all");
        assert_eq!(value(read(&world.anonymous, "open").await), b"for all");
        assert_eq!(value(read(&world.agent, "closed").await), b"for few");
        assert_eq!(read(&world.stranger, "closed").await, ReadOutcome::Refused);
        assert_eq!(read(&world.anonymous, "closed").await, ReadOutcome::Refused);
        assert_eq!(read(&world.stranger, "no such").await, ReadOutcome::Absent);
    });
}

#[test]
fn what_is_about_a_canister_is_read_at_its_own_id_alone() {
    run(async |world| {
        let [one, two] = world.canisters().await;
        let path: Path<'_> = &[b"canister", one.id.as_slice(), b"module_hash"];
        for at in [At::Canister(two.id), At::Subnet(subnet(world))] {
            read(world, &world.agent, at, 3, &[path]).await.unwrap_err();
        }
    });
}

#[test]
fn certified_data_cannot_be_read_from_outside() {
    run(async |world| {
        let canister = world.canister().await;
        for path in [
            &[b"canister".as_slice(), canister.id.as_slice(), b"certified_data"] as Path<'_>,
            &[b"canister", canister.id.as_slice()],
            &[b"canister"],
        ] {
            let at = At::Canister(canister.id);
            read(world, &world.agent, at, 3, &[path]).await.unwrap_err();
        }
    });
}

#[test]
fn the_subnets_public_key_is_the_root_key() {
    run(async |world| {
        let id = subnet(world);
        let path: Path<'_> = &[b"subnet", id.as_slice(), b"public_key"];
        let certificate = read(world, &world.anonymous, At::Subnet(id), 3, &[path]).await.unwrap();
        assert_eq!(value(find(&certificate, path)), world.agent.read_root_key());
    });
}

#[test]
fn the_subnets_type_is_one_of_those_there_are() {
    run(async |world| {
        let id = subnet(world);
        let path: Path<'_> = &[b"subnet", id.as_slice(), b"type"];
        let certificate = read(world, &world.anonymous, At::Subnet(id), 3, &[path]).await.unwrap();
        let told = String::from_utf8(value(find(&certificate, path))).unwrap();
        let known = ["application", "system", "verified_application", "cloud_engine"];
        assert!(known.contains(&told.as_str()), "{told}");
    });
}

type Ranges = Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>;

fn contains(ranges: &Ranges, id: Principal) -> bool {
    ranges
        .iter()
        .any(|(first, last)| first.as_slice() <= id.as_slice() && id.as_slice() <= last.as_slice())
}

#[test]
fn the_canister_ranges_of_the_root_subnet_hold_its_canisters() {
    run(async |world| {
        let canister = world.canister().await;
        let id = subnet(world);
        let path: Path<'_> = &[b"subnet", id.as_slice(), b"canister_ranges"];
        for version in [2, 3] {
            for at in [At::Subnet(id), At::Canister(canister.id)] {
                let told = read(world, &world.anonymous, at, version, &[path]).await.unwrap();
                let ranges: Ranges = untagged(&value(find(&told, path)));
                assert!(contains(&ranges, canister.id));
            }
        }
    });
}

#[test]
fn the_sharded_canister_ranges_are_read_at_the_subnet_and_hold_its_canisters() {
    run(async |world| {
        let canister = world.canister().await;
        let id = subnet(world);
        let path: Path<'_> = &[b"canister_ranges", id.as_slice()];
        let told = read(world, &world.anonymous, At::Subnet(id), 3, &[path]).await.unwrap();
        let mut held = false;
        for shard in told.tree.list_paths() {
            let shard: Vec<&[u8]> = shard.iter().map(Label::as_bytes).collect();
            if shard.len() == 3 && shard[..2] == *path {
                let ranges: Ranges = untagged(&value(find(&told, &shard)));
                assert_eq!(ranges[0].0.as_slice(), shard[2], "the shard's name is its first id");
                held |= contains(&ranges, canister.id);
            }
        }
        assert!(held);
        for version in [2, 3] {
            let at = At::Canister(canister.id);
            read(world, &world.anonymous, at, version, &[path]).await.unwrap_err();
        }
    });
}

#[test]
fn metrics_are_read_at_the_subnet_alone() {
    run(async |world| {
        let canister = world.canister().await;
        let id = subnet(world);
        let path: Path<'_> = &[b"subnet", id.as_slice(), b"metrics"];
        let told = read(world, &world.anonymous, At::Subnet(id), 3, &[path]).await.unwrap();
        assert!(!value(find(&told, path)).is_empty());
        let at = At::Canister(canister.id);
        read(world, &world.anonymous, at, 3, &[path]).await.unwrap_err();
    });
}

#[test]
fn the_nodes_of_the_subnet_have_public_keys() {
    run(async |world| {
        let id = subnet(world);
        let path: Path<'_> = &[b"subnet", id.as_slice(), b"node"];
        let told = read(world, &world.anonymous, At::Subnet(id), 3, &[path]).await.unwrap();
        let keys: Vec<_> = told
            .tree
            .list_paths()
            .into_iter()
            .filter(|path| path.last().is_some_and(|label| label.as_bytes() == b"public_key"))
            .filter(|path| path.len() == 5)
            .collect();
        assert!(!keys.is_empty());
        for key in keys {
            let key: Vec<&[u8]> = key.iter().map(Label::as_bytes).collect();
            let der = value(find(&told, &key));
            assert_eq!(Principal::self_authenticating(der).as_slice(), key[3]);
        }
    });
}

// Requests.

#[test]
fn at_most_1000_paths_of_127_labels_can_be_read_at_once() {
    run(async |world| {
        let at = At::Subnet(subnet(world));
        let time: Path<'_> = &[b"time"];
        read(world, &world.anonymous, at, 3, &[time; 1000]).await.unwrap();
        read(world, &world.anonymous, at, 3, &[time; 1001]).await.unwrap_err();
        let long: Path<'_> = &[b"time".as_slice(); 128];
        read(world, &world.anonymous, at, 3, &[long]).await.unwrap_err();
    });
}

/// Makes an update call and returns its request id.
async fn called(world: &World, canister: Universal, what: Program) -> Vec<u8> {
    let call = world.agent.update(&canister.id, "update").with_arg(what.encoded());
    let signed = call.sign().unwrap();
    let url = format!("{}/api/v4/canister/{}/call", world.url, canister.id);
    let (status, _) = post(url, signed.signed_update).await;
    assert_eq!(status, 200);
    signed.request_id.as_slice().to_vec()
}

// Promise: P9 - The certified state tree contains the status of a call with its reply.
#[test]
fn the_status_of_a_call_that_was_replied_has_the_reply() {
    run(async |world| {
        let canister = world.canister().await;
        let id = called(world, canister, reply(b"the reply")).await;
        let path = |last: &'static str| [b"request_status", id.as_slice(), last.as_bytes()];
        let at = At::Canister(canister.id);
        let all: Path<'_> = &[b"request_status", &id];
        let told = read(world, &world.agent, at, 3, &[all]).await.unwrap();
        assert_eq!(find(&told, &path("status")), ReadOutcome::Value(b"replied".to_vec()));
        assert_eq!(find(&told, &path("reply")), ReadOutcome::Value(b"the reply".to_vec()));
        assert_eq!(find(&told, &path("reject_code")), ReadOutcome::Absent);
        assert_eq!(find(&told, &path("reject_message")), ReadOutcome::Absent);
    });
}

#[test]
fn the_status_of_a_call_that_was_rejected_has_code_and_message() {
    run(async |world| {
        let canister = world.canister().await;
        let id = called(world, canister, reject("the reason")).await;
        let path = |last: &'static str| [b"request_status", id.as_slice(), last.as_bytes()];
        let at = At::Canister(canister.id);
        let all: Path<'_> = &[b"request_status", &id];
        let told = read(world, &world.agent, at, 3, &[all]).await.unwrap();
        assert_eq!(find(&told, &path("status")), ReadOutcome::Value(b"rejected".to_vec()));
        assert_eq!(find(&told, &path("reject_code")), ReadOutcome::Value(vec![4]));
        let message = ReadOutcome::Value(b"the reason".to_vec());
        assert_eq!(find(&told, &path("reject_message")), message);
        assert_eq!(find(&told, &path("reply")), ReadOutcome::Absent);
    });
}

#[test]
fn the_status_of_a_call_is_for_its_sender_at_its_canister() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        let id = called(world, canister, reply(b"")).await;
        let path: Path<'_> = &[b"request_status", &id, b"status"];
        let here = At::Canister(canister.id);
        read(world, &world.stranger, here, 3, &[path]).await.unwrap_err();
        read(world, &world.anonymous, here, 3, &[path]).await.unwrap_err();
        let there = At::Canister(other.id);
        read(world, &world.agent, there, 3, &[path]).await.unwrap_err();
        read(world, &world.agent, here, 3, &[path]).await.unwrap();
    });
}

#[test]
fn the_status_of_a_call_that_never_was_is_absent_for_everyone() {
    run(async |world| {
        let canister = world.canister().await;
        let path: Path<'_> = &[b"request_status", &[7; 32], b"status"];
        let at = At::Canister(canister.id);
        for agent in [&world.agent, &world.stranger, &world.anonymous] {
            let told = read(world, agent, at, 3, &[path]).await.unwrap();
            assert_eq!(find(&told, path), ReadOutcome::Absent);
        }
    });
}

#[test]
fn a_request_at_a_canister_outside_the_ranges_is_refused() {
    run(async |world| {
        let outside = Principal::from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 1, 1]);
        let url = format!("{}/api/v3/canister/{outside}/read_state", world.url);
        let (status, _) = post(url, signed(&world.anonymous, &[&[b"time"]])).await;
        assert!((400..500).contains(&status), "{status}");
    });
}

#[test]
#[ignore = "the node: its sender reads the status of a creation at any effective canister id"]
fn the_status_of_a_creation_is_read_where_it_was_sent() {
    run(async |world| {
        let [here, there] = world.canisters().await;
        let method = "provisional_create_canister_with_cycles";
        let call = world.agent.update(&Principal::management_canister(), method);
        let arguments = ProvisionalCreateCanisterWithCyclesArgs::default();
        let call = call.with_effective_canister_id(here.id).with_arg(Encode!(&arguments).unwrap());
        let signed = call.sign().unwrap();
        let url = format!("{}/api/v4/canister/{}/call", world.url, here.id);
        assert_eq!(post(url, signed.signed_update).await.0, 200);
        let path: Path<'_> = &[b"request_status", signed.request_id.as_slice(), b"status"];
        read(world, &world.agent, At::Canister(here.id), 3, &[path]).await.unwrap();
        read(world, &world.agent, At::Canister(there.id), 3, &[path]).await.unwrap_err();
    });
}

#[test]
fn one_request_reads_the_status_of_one_call() {
    run(async |world| {
        let canister = world.canister().await;
        let at = At::Canister(canister.id);
        let one: Path<'_> = &[b"request_status", &[7; 32], b"status"];
        let same: Path<'_> = &[b"request_status", &[7; 32], b"reply"];
        let two: Path<'_> = &[b"request_status", &[8; 32], b"status"];
        read(world, &world.agent, at, 3, &[one, same]).await.unwrap();
        read(world, &world.agent, at, 3, &[one, two]).await.unwrap_err();
    });
}

// Certified data.

/// Sets the certified data.
async fn certify(canister: Universal, data: &[u8]) -> Outcome {
    let what = program().bytes(data).split().import("certified_data_set").then(reply(b""));
    canister.update(what).await
}

/// The canister's own certificate of its certified data.
async fn certified(world: &World, canister: Universal) -> Vec<u8> {
    let told = canister.query(program().blob("data_certificate").reply()).await.unwrap();
    let certificate: Certificate = serde_cbor_2::from_slice(&told).unwrap();
    world.agent.verify(&certificate, canister.id).unwrap();
    value(find(&certificate, &[b"time"]));
    value(find(&certificate, &[b"canister", canister.id.as_slice(), b"certified_data"]))
}

#[test]
fn the_data_certificate_has_what_was_set_last() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(certified(world, canister).await, b"");
        for data in [b"one".as_slice(), &[9; 32], b""] {
            certify(canister, data).await.unwrap();
            assert_eq!(certified(world, canister).await, data);
        }
    });
}

#[test]
fn certified_data_has_at_most_32_bytes() {
    run(async |world| {
        let canister = world.canister().await;
        certify(canister, b"before").await.unwrap();
        assert_eq!(code(certify(canister, &[9; 33]).await), 5);
        assert_eq!(certified(world, canister).await, b"before");
    });
}

#[test]
fn certified_data_outlives_an_upgrade_and_not_a_reinstallation() {
    run(async |world| {
        let canister = world.canister().await;
        certify(canister, b"data").await.unwrap();
        for (mode, expected) in [
            (CanisterInstallMode::Upgrade(None), b"data".as_slice()),
            (CanisterInstallMode::Reinstall, b""),
        ] {
            world.install(canister.id, mode, module(), vec![]).await.unwrap();
            assert_eq!(certified(world, canister).await, expected, "{mode:?}");
        }
        assert!(status(world, canister.id).await.version > 0);
    });
}
