//! The published client library against the gateway: every kind of identity, every endpoint it
//! uses, every signature it verifies.

use std::sync::atomic::Ordering;

use ic_agent::{
    Agent, AgentError, Identity,
    agent::CallResponse,
    identity::{
        AnonymousIdentity, DelegatedIdentity, Prime256v1Identity, Secp256k1Identity,
        SignedDelegation,
    },
};
use ic_principal::Principal;
use ic_transport_types::{Delegation, DelegationPermissions, EnvelopeContent};
use testing::until_async;

use crate::support::{self, World, canister, ed25519, now};

fn p256(seed: u8) -> Prime256v1Identity {
    Prime256v1Identity::from_private_key(p256::SecretKey::from_slice(&[seed; 32]).unwrap())
}

fn secp256k1(seed: u8) -> Secp256k1Identity {
    Secp256k1Identity::from_private_key(k256::SecretKey::from_slice(&[seed; 32]).unwrap())
}

fn delegate(
    from: &dyn Identity,
    to: Box<dyn Identity>,
    targets: Option<Vec<Principal>>,
    permissions: Option<DelegationPermissions>,
) -> DelegatedIdentity {
    let delegation = Delegation {
        pubkey: to.public_key().unwrap(),
        expiration: now().0 + 600_000_000_000,
        targets,
        permissions,
    };
    let signature = from.sign_delegation(&delegation).unwrap();
    let chain = vec![SignedDelegation { delegation, signature: signature.signature.unwrap() }];
    DelegatedIdentity::new_unchecked(from.public_key().unwrap(), to, chain)
}

async fn exercise(world: &World, name: &str, agent: &Agent) {
    let arg = name.as_bytes().to_vec();
    let reply = agent.query(&canister(1), "echo").with_arg(arg.clone()).call().await;
    assert_eq!(reply.unwrap(), arg, "{name}: query with a verified node signature");
    let reply = agent.update(&canister(1), "echo").with_arg(arg.clone()).call_and_wait().await;
    assert_eq!(reply.unwrap(), arg, "{name}: synchronous call with a verified certificate");
    let sender = agent.get_principal().unwrap();
    assert_eq!(
        world.script.last_ingress.lock().unwrap().as_ref().unwrap().sender,
        sender,
        "{name}"
    );
    assert_eq!(world.script.last_query.lock().unwrap().as_ref().unwrap().sender, sender, "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_identity_calls_and_queries() {
    let world = World::start().await;
    exercise(&world, "anonymous", &world.agent(AnonymousIdentity)).await;
    exercise(&world, "ed25519", &world.agent(ed25519(1))).await;
    exercise(&world, "p256", &world.agent(p256(2))).await;
    exercise(&world, "secp256k1", &world.agent(secp256k1(3))).await;
    exercise(
        &world,
        "delegated",
        &world.agent(delegate(&ed25519(1), Box::new(p256(2)), None, None)),
    )
    .await;
    let targeted = delegate(
        &p256(2),
        Box::new(secp256k1(3)),
        Some(vec![canister(4), canister(1)]),
        Some(DelegationPermissions::All),
    );
    exercise(&world, "delegated with targets", &world.agent(targeted)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_reply_is_answered_without_a_query_thread() {
    let world = World::start().await;
    for agent in [world.agent(AnonymousIdentity), world.agent(ed25519(1))] {
        // The first are short enough for a kept signature; the last is too long for an answer at
        // once.
        for (bytes, queries) in [(3, 0), (3, 0), (4_000, 0), (100_000, 1)] {
            let before = world.script.queries.load(Ordering::SeqCst);
            let arg = vec![7; bytes];
            let reply = agent.query(&canister(1), "kept").with_arg(arg.clone()).call().await;
            assert_eq!(reply.unwrap(), arg, "with a verified node signature");
            assert_eq!(world.script.queries.load(Ordering::SeqCst) - before, queries, "{bytes}");
        }
    }
    until_async("the answers", async || world.responses.used_bytes() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn same_request_has_the_same_signature_for_a_moment_and_another_does_not() {
    let world = World::start().await;
    let ask = |number: u8| {
        let mut content = support::query(Principal::anonymous(), "kept");
        let EnvelopeContent::Query { arg, .. } = &mut content else { panic!("a query") };
        *arg = vec![number; 20];
        support::sign(&AnonymousIdentity, content).encode_bytes()
    };
    let path = format!("/api/v3/canister/{}/query", canister(1));
    let (one, other) = (ask(1), ask(2));
    let mut last = world.post(&path, &one).await;
    assert_eq!(last.status, 200);
    until_async("two answers in one moment", async || {
        let next = world.post(&path, &one).await;
        assert_eq!(next.status, 200);
        let is_same = next.body == last.body;
        last = next;
        is_same
    })
    .await;
    assert_ne!(world.post(&path, &other).await.body, last.body);
    until_async("another signature", async || world.post(&path, &one).await.body != last.body)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_without_inspection_code_is_inspected_without_a_thread() {
    let world = World::start().await;
    let agent = world.agent(ed25519(1));
    let arg = b"argument".to_vec();
    let call = agent.update(&canister(1), "accepted_at_once").with_arg(arg.clone());
    assert_eq!(call.call_and_wait().await.unwrap(), arg);
    let refused = agent.update(&canister(1), "refused_at_once").call_and_wait().await;
    assert!(matches!(refused, Err(AgentError::UncertifiedReject { .. })), "{refused:?}");
    assert_eq!(world.script.inspected.load(Ordering::SeqCst), 0);
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queries_only_delegation_queries_and_reads_but_does_not_call() {
    let world = World::start().await;
    let agent = world.agent(delegate(
        &ed25519(1),
        Box::new(ed25519(2)),
        None,
        Some(DelegationPermissions::Queries),
    ));
    agent.query(&canister(1), "echo").call().await.unwrap();
    agent.read_state_canister_info(canister(1), "module_hash").await.unwrap();
    let error = agent.update(&canister(1), "echo").call_and_wait().await.unwrap_err();
    assert!(matches!(&error, AgentError::HttpError(payload) if payload.status == 400), "{error}");
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_learns_the_root_key_and_reads_the_state() {
    let world = World::start().await;
    let agent = world.agent(ed25519(1));
    let status = agent.status().await.unwrap();
    assert_eq!(status.root_key.as_deref(), Some(&world.script.key.der()[..]));
    assert_eq!(status.replica_health_status.as_deref(), Some("healthy"));
    assert_eq!(status.impl_version.as_deref(), Some("0.1.0-test"));

    assert_eq!(agent.read_state_canister_module_hash(canister(1)).await.unwrap(), [7; 32]);
    assert_eq!(agent.read_state_canister_controllers(canister(1)).await.unwrap(), [canister(2)]);
    assert_eq!(
        agent.read_state_canister_metadata(canister(1), "candid:service").await.unwrap(),
        b"service : {}"
    );
    let subnet = world.script.key.id();
    assert_eq!(agent.read_state_subnet_metrics(subnet).await.unwrap().num_canisters, 3);
    assert_eq!(
        agent.fetch_subnet_by_id(&subnet).await.unwrap().self_reported_key(),
        world.script.key.der()
    );
    assert!(
        agent
            .fetch_subnet_by_canister(&canister(1))
            .await
            .unwrap()
            .contains_canister(&canister(50))
    );
    let private = agent.read_state_canister_metadata(canister(1), "secret").await.unwrap_err();
    assert!(
        matches!(&private, AgentError::HttpError(payload) if payload.status == 403),
        "{private}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_reach_the_client_in_each_of_their_forms() {
    let world = World::start().await;
    let agent = world.agent(ed25519(1));
    let query = agent.query(&canister(1), "reject").call().await.unwrap_err();
    assert!(
        matches!(&query, AgentError::UncertifiedReject { reject, .. } if reject.error_code.as_deref() == Some("IC0406")),
        "{query}"
    );
    let call = agent.update(&canister(1), "reject").call_and_wait().await.unwrap_err();
    assert!(
        matches!(&call, AgentError::CertifiedReject { reject, .. } if reject.reject_message == "as you wish"),
        "{call}"
    );
    let inspected = agent.update(&canister(1), "inspected_away").call_and_wait().await.unwrap_err();
    assert!(matches!(inspected, AgentError::UncertifiedReject { .. }), "{inspected}");
    assert_eq!(world.script.submitted.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_takes_longer_than_the_wait_is_polled_for() {
    let mut limits = support::gateway_limits();
    limits.sync_call_wait_millis = 50;
    let world = World::with(limits).await;
    world.script.at_once.store(false, Ordering::SeqCst);
    let agent = world.agent(ed25519(1));
    let CallResponse::Poll(id) =
        agent.update(&canister(1), "echo").with_arg(b"later").call().await.unwrap()
    else {
        panic!("nothing was certified");
    };
    assert_eq!(world.script.certify().len(), 1);
    let (reply, _) = agent.wait(&id, canister(1)).await.unwrap();
    assert_eq!(reply, b"later");
    // Another sender may not read it.
    let other = world.agent(ed25519(2)).request_status_raw(&id, canister(1)).await.unwrap_err();
    assert!(matches!(&other, AgentError::HttpError(payload) if payload.status == 403), "{other}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_call_is_answered_when_its_height_is_certified() {
    let world = World::start().await;
    world.script.at_once.store(false, Ordering::SeqCst);
    let agent = world.agent(ed25519(1));
    let call =
        tokio::spawn(
            async move { agent.update(&canister(1), "echo").with_arg(b"now").call().await },
        );
    // The call waits before it is submitted, so once there is something to certify there is a
    // waiter for it.
    while world.script.certify().is_empty() {
        tokio::task::yield_now().await;
    }
    let CallResponse::Response((reply, _)) = call.await.unwrap().unwrap() else {
        panic!("it was certified")
    };
    assert_eq!(reply, b"now");
    assert!(world.script.waiters.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creating_a_canister_works_at_any_effective_id_and_at_the_subnet() {
    let world = World::start().await;
    let agent = world.agent(ed25519(1));
    let management = Principal::management_canister();
    let arg = candid::encode_args(()).unwrap();
    for effective in [canister(1), canister(200), management] {
        let reply = agent
            .update(&management, "provisional_create_canister_with_cycles")
            .with_effective_canister_id(effective)
            .with_arg(arg.clone())
            .call_and_wait()
            .await;
        assert_eq!(reply.unwrap(), arg);
    }
    let signed = agent
        .update(&management, "create_canister")
        .with_arg(arg.clone())
        .with_effective_canister_id(canister(1))
        .sign()
        .unwrap();
    let subnet = ic_agent::agent::EffectiveId::Subnet(world.script.key.id());
    let CallResponse::Response(reply) =
        agent.update_signed(subnet, signed.signed_update).await.unwrap()
    else {
        panic!("it was certified")
    };
    assert_eq!(reply, arg);
    // Where it was sent is not signed: all such calls have one effective id from there on.
    assert_eq!(
        world.script.last_ingress.lock().unwrap().as_ref().unwrap().effective_canister_id,
        Principal::management_canister()
    );
}
