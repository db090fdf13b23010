//! Chapter "HTTPS interface": calls, queries, the status and authentication.

use std::{
    borrow::Cow,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use candid::Principal;
use ic_agent::{
    Agent, Identity,
    agent::{Envelope, EnvelopeContent},
    hash_tree::Label,
    identity::{
        BasicIdentity, Delegation, DelegationPermissions, Prime256v1Identity, Secp256k1Identity,
        SignedDelegation,
    },
};
use ic_certification::{Certificate, LookupResult};
use serde::{Deserialize, Serialize};

use super::{
    fixture::*,
    harness::{self, management},
    program::*,
};

/// Status and body of a request with that body.
pub(crate) async fn post(url: String, body: Vec<u8>) -> (u16, Vec<u8>) {
    let request = reqwest::Client::new().post(url).header("content-type", "application/cbor");
    let response = request.body(body).send().await.unwrap();
    (response.status().as_u16(), response.bytes().await.unwrap().to_vec())
}

/// The key behind the agents of the fixture, by its seed.
pub(crate) fn identity(seed: u8) -> BasicIdentity {
    BasicIdentity::from_raw_key(&[seed; 32])
}

/// The content in an envelope that the agent's identity signed, if it has a key.
pub(crate) fn envelope(agent: &Agent, content: EnvelopeContent) -> Vec<u8> {
    let who = agent.get_principal().unwrap();
    let identity = [1, 2].map(identity).into_iter().find(|one| one.sender().unwrap() == who);
    match identity {
        Some(identity) => sealed(&identity, content).encode_bytes(),
        None => bare(content).encode_bytes(),
    }
}

pub(crate) fn bare(content: EnvelopeContent) -> Envelope<'static> {
    Envelope {
        content: Cow::Owned(content),
        sender_pubkey: None,
        sender_sig: None,
        sender_delegation: None,
    }
}

pub(crate) fn sealed(identity: &dyn Identity, content: EnvelopeContent) -> Envelope<'static> {
    let signature = identity.sign(&content).unwrap();
    Envelope {
        sender_pubkey: signature.public_key,
        sender_sig: signature.signature,
        ..bare(content)
    }
}

/// Nanoseconds since 1970, this number of seconds from now.
pub(crate) fn at(seconds: i64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let span = Duration::from_secs(seconds.unsigned_abs());
    let when = if seconds < 0 { now - span } else { now + span };
    u64::try_from(when.as_nanos()).unwrap()
}

/// An update call of the universal canister, by the holder of a key.
pub(crate) fn call(sender: Principal, canister: Universal, what: &Program) -> EnvelopeContent {
    EnvelopeContent::Call {
        nonce: ic_agent::NonceFactory::random().generate(),
        ingress_expiry: at(120),
        sender,
        canister_id: canister.id,
        method_name: "update".into(),
        arg: what.clone().encoded(),
        sender_info: None,
    }
}

pub(crate) fn query(sender: Principal, canister: Universal, what: &Program) -> EnvelopeContent {
    EnvelopeContent::Query {
        ingress_expiry: at(120),
        sender,
        canister_id: canister.id,
        method_name: "query".into(),
        arg: what.clone().encoded(),
        nonce: None,
        sender_info: None,
    }
}

/// Sends an envelope for the canister to `what` of that version.
pub(crate) async fn send(
    world: &World,
    canister: Principal,
    version: u32,
    what: &str,
    envelope: &Envelope<'_>,
) -> (u16, Vec<u8>) {
    let url = format!("{}/api/v{version}/canister/{canister}/{what}", world.url);
    post(url, envelope.encode_bytes()).await
}

#[track_caller]
pub(crate) fn refused(answer: (u16, Vec<u8>)) {
    let text = String::from_utf8_lossy(&answer.1).into_owned();
    assert!((400..500).contains(&answer.0), "{}: {text}", answer.0);
}

#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    pub(crate) status: String,
    #[serde(default, with = "serde_bytes")]
    certificate: Vec<u8>,
    #[serde(default)]
    reject_code: u64,
    #[serde(default)]
    reject_message: String,
    pub(crate) reply: Option<Reply>,
    #[serde(default)]
    signatures: Vec<NodeSignature>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Reply {
    #[serde(with = "serde_bytes")]
    pub(crate) arg: Vec<u8>,
}

#[derive(Debug, Deserialize)]
struct NodeSignature {
    timestamp: u64,
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
    #[serde(with = "serde_bytes")]
    identity: Vec<u8>,
}

#[track_caller]
pub(crate) fn answer(told: &(u16, Vec<u8>)) -> Answer {
    assert_eq!(told.0, 200, "{}", String::from_utf8_lossy(&told.1));
    serde_cbor_2::from_slice(&told.1).unwrap()
}

/// A leaf about the call in the certificate of an answer.
fn leaf(world: &World, canister: Universal, told: &Answer, id: &[u8], name: &str) -> Vec<u8> {
    let certificate: Certificate = serde_cbor_2::from_slice(&told.certificate).unwrap();
    world.agent.verify(&certificate, canister.id).unwrap();
    match certificate.tree.lookup_path([b"request_status".as_slice(), id, name.as_bytes()]) {
        LookupResult::Found(value) => value.to_vec(),
        other => panic!("{name}: {other:?}"),
    }
}

fn owner() -> (BasicIdentity, Principal) {
    let identity = identity(1);
    let sender = identity.sender().unwrap();
    (identity, sender)
}

// The endpoints.

#[test]
fn the_status_is_tagged_cbor_with_the_root_key() {
    run(async |world| {
        let response = reqwest::get(format!("{}/api/v2/status", world.url)).await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        let body = response.bytes().await.unwrap();
        assert_eq!(body[..3], [0xd9, 0xd9, 0xf7]);
        #[derive(Deserialize)]
        struct Status {
            #[serde(with = "serde_bytes")]
            root_key: Vec<u8>,
        }
        let status: Status = serde_cbor_2::from_slice(&body).unwrap();
        assert_eq!(status.root_key, world.agent.read_root_key());
        // DER of a BLS key: 37 bytes before the key's 96.
        assert_eq!(status.root_key.len(), 133);
    });
}

#[test]
fn an_asynchronous_call_is_taken_with_202_and_an_empty_body() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let content = call(sender, canister, &program().bytes(b"done").keep().then(reply(b"")));
        let told = send(world, canister.id, 2, "call", &sealed(&key, content)).await;
        assert_eq!((told.0, told.1.len()), (202, 0));
        canister.keeps(b"done").await;
    });
}

#[test]
fn a_synchronous_call_is_answered_with_a_certificate_of_its_reply() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        for version in [3, 4] {
            let content = call(sender, canister, &reply(b"answer"));
            let id = content.to_request_id();
            let told = send(world, canister.id, version, "call", &sealed(&key, content)).await;
            let told = answer(&told);
            assert_eq!(told.status, "replied");
            let found = leaf(world, canister, &told, id.as_slice(), "reply");
            assert_eq!(found, b"answer");
        }
    });
}

#[test]
fn a_synchronous_call_that_is_rejected_is_answered_with_a_certificate_too() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let content = call(sender, canister, &reject("no"));
        let id = content.to_request_id();
        let told = send(world, canister.id, 4, "call", &sealed(&key, content)).await;
        let told = answer(&told);
        assert_eq!(told.status, "replied");
        let found = leaf(world, canister, &told, id.as_slice(), "status");
        assert_eq!(found, b"rejected");
    });
}

#[test]
fn a_call_that_is_not_taken_is_answered_with_the_reject_code() {
    run(async |world| {
        let canister = world.canister().await;
        let nothing = program().hook(Hook::InspectMessage, program()).then(reply(b""));
        canister.update(nothing).await.unwrap();
        let (key, sender) = owner();
        for (version, status) in
            [(2, ""), (3, "non_replicated_rejection"), (4, "non_replicated_rejection")]
        {
            let content = call(sender, canister, &reply(b""));
            let told = send(world, canister.id, version, "call", &sealed(&key, content)).await;
            let told = answer(&told);
            if version > 2 {
                assert_eq!(told.status, status, "v{version}");
            }
            assert_eq!(told.reject_code, 4, "v{version}");
            assert!(!told.reject_message.is_empty());
        }
    });
}

#[test]
fn a_query_is_answered_with_reply_and_signature_or_reject_and_signature() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        for version in [2, 3] {
            let content = query(sender, canister, &reply(b"answer"));
            let told = send(world, canister.id, version, "query", &sealed(&key, content)).await;
            let told = answer(&told);
            assert_eq!((told.status.as_str(), told.signatures.len()), ("replied", 1));
            assert_eq!(told.reply.unwrap().arg, b"answer");
            let signature = &told.signatures[0];
            assert!(signature.timestamp.abs_diff(at(0)) < 300_000_000_000);
            assert_eq!((signature.signature.len(), signature.identity.len()), (64, 29));
            let content = query(sender, canister, &reject("reason"));
            let told = send(world, canister.id, version, "query", &sealed(&key, content)).await;
            let told = answer(&told);
            assert_eq!((told.status.as_str(), told.signatures.len()), ("rejected", 1));
            assert_eq!((told.reject_code, told.reject_message.as_str()), (4, "reason"));
        }
    });
}

#[test]
fn a_request_of_another_type_than_the_endpoints_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let asked = sealed(&key, query(sender, canister, &reply(b"")));
        refused(send(world, canister.id, 4, "call", &asked).await);
        refused(send(world, canister.id, 3, "read_state", &asked).await);
        let called = sealed(&key, call(sender, canister, &reply(b"")));
        refused(send(world, canister.id, 3, "query", &called).await);
    });
}

#[test]
fn what_is_no_cbor_or_no_envelope_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let good = sealed(&key, call(sender, canister, &reply(b""))).encode_bytes();
        let url = || format!("{}/api/v4/canister/{}/call", world.url, canister.id);
        let bodies = [
            vec![],
            b"text".to_vec(),
            good[..good.len() / 2].to_vec(),
            vec![0xd9, 0xd9, 0xf7, 0xa0],
        ];
        for body in bodies {
            refused(post(url(), body).await);
        }
        assert_eq!(post(url(), good).await.0, 200);
    });
}

#[test]
fn the_effective_canister_id_must_be_that_of_the_request() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        let (key, sender) = owner();
        let change = program().bytes(b"changed").keep().then(reply(b""));
        let called = sealed(&key, call(sender, canister, &change));
        for version in [2, 3, 4] {
            refused(send(world, other.id, version, "call", &called).await);
        }
        let asked = sealed(&key, query(sender, canister, &reply(b"")));
        refused(send(world, other.id, 3, "query", &asked).await);
        // A call to the management canister goes to the canister that it is about.
        let stop = world.agent.update(&management(), "stop_canister");
        let stop = stop.with_effective_canister_id(other.id).with_arg(record(canister.id));
        stop.call_and_wait().await.unwrap_err();
        assert_eq!(canister.kept().await, b"");
    });
}

#[test]
fn a_call_of_the_management_canister_that_names_no_canister_is_rejected_and_not_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        for method in ["raw_rand", "no_such_method", "start_canister"] {
            let mut content = call(sender, canister, &program());
            if let EnvelopeContent::Call { canister_id, method_name, .. } = &mut content {
                *canister_id = management();
                *method_name = method.into();
            }
            let told = send(world, canister.id, 4, "call", &sealed(&key, content)).await;
            let told = answer(&told);
            assert_eq!(told.status, "non_replicated_rejection", "{method}");
        }
    });
}

// Replays.

// Promise: P9 - A call that is sent twice is executed once.
#[test]
fn the_same_call_sent_twice_is_executed_once() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let what = program().keep_more(b"x").kept().reply();
        let content = call(sender, canister, &what);
        let id = content.to_request_id();
        let once = sealed(&key, content);
        for _ in 0..2 {
            let told = answer(&send(world, canister.id, 4, "call", &once).await);
            assert_eq!(leaf(world, canister, &told, id.as_slice(), "reply"), b"x");
        }
        let again = sealed(&key, call(sender, canister, &what));
        send(world, canister.id, 4, "call", &again).await;
        assert_eq!(canister.kept().await, b"xx", "another nonce is another call");
    });
}

#[test]
fn a_nonce_has_at_most_32_bytes() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        for (size, taken) in [(32, true), (33, false)] {
            let mut content = call(sender, canister, &reply(b""));
            if let EnvelopeContent::Call { nonce, .. } = &mut content {
                *nonce = Some(vec![5; size]);
            }
            let told = send(world, canister.id, 4, "call", &sealed(&key, content)).await;
            if taken {
                assert_eq!(told.0, 200)
            } else {
                refused(told)
            }
            let mut content = query(sender, canister, &reply(b""));
            if let EnvelopeContent::Query { nonce, .. } = &mut content {
                *nonce = Some(vec![5; size]);
            }
            let told = send(world, canister.id, 3, "query", &sealed(&key, content)).await;
            if taken { assert_eq!(told.0, 200) } else { refused(told) }
        }
    });
}

/// The same content with another expiry.
fn expiring(mut content: EnvelopeContent, when: u64) -> EnvelopeContent {
    let (EnvelopeContent::Call { ingress_expiry, .. }
    | EnvelopeContent::Query { ingress_expiry, .. }
    | EnvelopeContent::ReadState { ingress_expiry, .. }) = &mut content;
    *ingress_expiry = when;
    content
}

#[test]
fn a_request_whose_expiry_has_passed_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let read = EnvelopeContent::ReadState {
            ingress_expiry: 0,
            sender,
            paths: vec![vec![Label::from_bytes(b"time")]],
        };
        for (what, version, content) in [
            ("call", 2, call(sender, canister, &reply(b""))),
            ("call", 4, call(sender, canister, &reply(b""))),
            ("query", 3, query(sender, canister, &reply(b""))),
            ("read_state", 3, read),
        ] {
            let late = sealed(&key, expiring(content, at(-600)));
            refused(send(world, canister.id, version, what, &late).await);
        }
        // That of an anonymous call counts too.
        let late = expiring(call(Principal::anonymous(), canister, &reply(b"")), at(-600));
        refused(send(world, canister.id, 4, "call", &bare(late)).await);
    });
}

// Authentication.

#[test]
fn a_request_without_or_with_a_wrong_signature_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        for (what, version, content) in [
            ("call", 4, call(sender, canister, &reply(b""))),
            ("query", 3, query(sender, canister, &reply(b""))),
        ] {
            refused(send(world, canister.id, version, what, &bare(content.clone())).await);
            let mut wrong = sealed(&key, content.clone());
            wrong.sender_sig.as_mut().unwrap()[10] ^= 1;
            refused(send(world, canister.id, version, what, &wrong).await);
            let mut no_key = sealed(&key, content.clone());
            no_key.sender_pubkey = None;
            refused(send(world, canister.id, version, what, &no_key).await);
            // A valid signature of a key other than the sender's.
            let other = sealed(&identity(2), content);
            refused(send(world, canister.id, version, what, &other).await);
        }
    });
}

#[test]
fn an_anonymous_request_has_no_signature() {
    run(async |world| {
        let canister = world.canister().await;
        let content = query(Principal::anonymous(), canister, &reply(b"answer"));
        let told = send(world, canister.id, 3, "query", &bare(content.clone())).await;
        assert_eq!(answer(&told).status, "replied");
        refused(send(world, canister.id, 3, "query", &sealed(&identity(1), content)).await);
    });
}

#[test]
fn keys_of_all_three_plain_schemes_sign_requests() {
    run(async |world| {
        let canister = world.canister().await;
        let ed25519: Box<dyn Identity> = Box::new(identity(7));
        let secret = k256::SecretKey::from_slice(&[7; 32]).unwrap();
        let k256: Box<dyn Identity> = Box::new(Secp256k1Identity::from_private_key(secret));
        let secret = p256::SecretKey::from_slice(&[7; 32]).unwrap();
        let p256: Box<dyn Identity> = Box::new(Prime256v1Identity::from_private_key(secret));
        for key in [ed25519, k256, p256] {
            let sender = key.sender().unwrap();
            let content = query(sender, canister, &program().blob("msg_caller").reply());
            let told = send(world, canister.id, 3, "query", &sealed(&*key, content)).await;
            assert_eq!(answer(&told).reply.unwrap().arg, sender.as_slice());
        }
    });
}

// Delegations.

/// A delegation from one key to another.
fn delegated(
    from: &BasicIdentity,
    to: &BasicIdentity,
    how: impl Fn(&mut Delegation),
) -> SignedDelegation {
    let mut delegation = Delegation {
        pubkey: to.public_key().unwrap(),
        expiration: at(300),
        targets: None,
        permissions: None,
    };
    how(&mut delegation);
    let signature = from.sign_delegation(&delegation).unwrap().signature.unwrap();
    SignedDelegation { delegation, signature }
}

/// The content signed by the last key of a chain that begins at `first`.
fn chained(
    first: &BasicIdentity,
    chain: Vec<SignedDelegation>,
    last: &BasicIdentity,
    content: EnvelopeContent,
) -> Envelope<'static> {
    Envelope {
        sender_pubkey: first.public_key(),
        sender_delegation: Some(chain),
        ..sealed(last, content)
    }
}

/// Sends a query and an update call of the owner through one delegation; the HTTP status codes.
async fn through(world: &World, canister: Universal, how: impl Fn(&mut Delegation)) -> [u16; 2] {
    let (key, sender) = owner();
    let last = identity(30);
    let chain = vec![delegated(&key, &last, how)];
    let asked = query(sender, canister, &program().blob("msg_caller").reply());
    let asked = chained(&key, chain.clone(), &last, asked);
    let asked = send(world, canister.id, 3, "query", &asked).await;
    if asked.0 == 200 {
        assert_eq!(answer(&asked).reply.unwrap().arg, sender.as_slice());
    }
    let called = chained(&key, chain, &last, call(sender, canister, &reply(b"")));
    [asked.0, send(world, canister.id, 4, "call", &called).await.0]
}

fn is_refused(statuses: [u16; 2]) -> [bool; 2] {
    statuses.map(|status| (400..500).contains(&status))
}

#[test]
fn a_delegation_lets_another_key_sign_for_the_sender() {
    run(async |world| {
        let canister = world.canister().await;
        assert_eq!(through(world, canister, |_| ()).await, [200, 200]);
    });
}

#[test]
fn an_expired_delegation_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let told = through(world, canister, |one| one.expiration = at(-600)).await;
        assert_eq!(is_refused(told), [true; 2]);
    });
}

#[test]
fn a_delegation_for_some_canisters_is_refused_for_others() {
    run(async |world| {
        let [canister, other] = world.canisters().await;
        let told = through(world, canister, |one| one.targets = Some(vec![other.id])).await;
        assert_eq!(is_refused(told), [true; 2]);
        let targets = vec![other.id, canister.id];
        let told = through(world, canister, |one| one.targets = Some(targets.clone())).await;
        assert_eq!(told, [200, 200]);
    });
}

#[test]
fn a_delegation_has_at_most_1000_targets() {
    run(async |world| {
        let canister = world.canister().await;
        let targets = |many| Some(vec![canister.id; many]);
        let told = through(world, canister, |one| one.targets = targets(1000)).await;
        assert_eq!(told, [200, 200]);
        let told = through(world, canister, |one| one.targets = targets(1001)).await;
        assert_eq!(is_refused(told), [true; 2]);
    });
}

#[test]
fn a_delegation_for_queries_does_not_permit_calls() {
    run(async |world| {
        let canister = world.canister().await;
        let with =
            |permissions| through(world, canister, move |one| one.permissions = Some(permissions));
        let told = with(DelegationPermissions::Queries).await;
        assert_eq!((told[0], is_refused(told)[1]), (200, true));
        assert_eq!(with(DelegationPermissions::All).await, [200, 200]);
    });
}

/// A delegation and envelope as above, with permissions that the types do not have.
#[derive(Serialize)]
struct FreeDelegation {
    #[serde(with = "serde_bytes")]
    pubkey: Vec<u8>,
    expiration: u64,
    permissions: String,
}

#[derive(Serialize)]
struct FreeSigned {
    delegation: FreeDelegation,
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
}

#[derive(Serialize)]
struct FreeEnvelope {
    content: EnvelopeContent,
    #[serde(with = "serde_bytes")]
    sender_pubkey: Vec<u8>,
    #[serde(with = "serde_bytes")]
    sender_sig: Vec<u8>,
    sender_delegation: Vec<FreeSigned>,
}

#[test]
fn a_delegation_with_permissions_that_do_not_exist_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let last = identity(30);
        for (permissions, taken) in [("all", true), ("queries", true), ("everything", false)] {
            let delegation = FreeDelegation {
                pubkey: last.public_key().unwrap(),
                expiration: at(300),
                permissions: permissions.into(),
            };
            let hash = ic_agent::to_request_id(&delegation).unwrap();
            let bytes = [b"\x1Aic-request-auth-delegation", hash.as_slice()].concat();
            let signature = key.sign_arbitrary(&bytes).unwrap().signature.unwrap();
            let content = query(sender, canister, &reply(b""));
            let envelope = FreeEnvelope {
                sender_pubkey: key.public_key().unwrap(),
                sender_sig: last.sign(&content).unwrap().signature.unwrap(),
                content,
                sender_delegation: vec![FreeSigned { delegation, signature }],
            };
            let url = format!("{}/api/v3/canister/{}/query", world.url, canister.id);
            let told = post(url, serde_cbor_2::to_vec(&envelope).unwrap()).await;
            if taken {
                assert_eq!(answer(&told).status, "replied", "{permissions}");
            } else {
                refused(told);
            }
        }
    });
}

/// A chain over these keys after the owner's. Returns whether it is accepted.
async fn chain_of(world: &World, canister: Universal, keys: &[u8]) -> bool {
    let (key, sender) = owner();
    let mut before = identity(1);
    let mut chain = Vec::new();
    for seed in keys {
        let next = identity(*seed);
        chain.push(delegated(&before, &next, |_| ()));
        before = next;
    }
    let content = query(sender, canister, &reply(b""));
    let told = send(world, canister.id, 3, "query", &chained(&key, chain, &before, content)).await;
    assert!(told.0 == 200 || (400..500).contains(&told.0), "{}", told.0);
    told.0 == 200
}

#[test]
fn a_chain_has_at_most_20_delegations() {
    run(async |world| {
        let canister = world.canister().await;
        let keys: Vec<u8> = (50..71).collect();
        assert!(chain_of(world, canister, &keys[..20]).await);
        assert!(!chain_of(world, canister, &keys).await);
    });
}

#[test]
fn every_key_is_once_in_a_chain() {
    run(async |world| {
        let canister = world.canister().await;
        assert!(chain_of(world, canister, &[50, 51]).await);
        for keys in [[50, 50].as_slice(), &[50, 51, 50], &[1], &[50, 1]] {
            assert!(!chain_of(world, canister, keys).await, "{keys:?}");
        }
    });
}

#[test]
fn a_delegation_that_another_key_signed_is_refused() {
    run(async |world| {
        let canister = world.canister().await;
        let (key, sender) = owner();
        let last = identity(30);
        let forged = vec![delegated(&identity(2), &last, |_| ())];
        let content = query(sender, canister, &reply(b""));
        let envelope = chained(&key, forged, &last, content);
        refused(send(world, canister.id, 3, "query", &envelope).await);
    });
}

#[test]
fn the_subnet_endpoint_takes_nothing_but_the_creation_of_canisters() {
    run(async |world| {
        let canister = world.canister().await;
        let subnet = Principal::self_authenticating(world.agent.read_root_key());
        let (key, sender) = owner();
        let change = program().bytes(b"changed").keep().then(reply(b""));
        let body = sealed(&key, call(sender, canister, &change)).encode_bytes();
        refused(post(format!("{}/api/v4/subnet/{subnet}/call", world.url), body).await);
        let body = sealed(&key, query(sender, canister, &reply(b""))).encode_bytes();
        refused(post(format!("{}/api/v3/subnet/{subnet}/query", world.url), body).await);
        assert_eq!(canister.kept().await, b"");
    });
}

#[test]
fn a_query_method_may_be_called_for_a_certified_answer() {
    run(async |world| {
        let canister = world.canister().await;
        let done = harness::update(&world.agent, canister.id, "query", reply(b"x").encoded()).await;
        assert_eq!(done.unwrap(), b"x");
    });
}
