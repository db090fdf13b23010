//! Decoding and authentication return for any input; and a decoded envelope equals the one sent.

use std::time::Duration;

use envelope::{
    Envelope, EnvelopeBounds, Request,
    auth::{AuthConfig, authenticate},
    canonical, may_install_code,
};
use ic_agent::Identity;
use ic_transport_types::{Delegation, EnvelopeContent, SignedDelegation};
use proptest::prelude::*;

use crate::signing::{
    SubnetKey, call, canister, ed25519, gateway_limits, now, query, read_state, sign,
};

fn bounds() -> EnvelopeBounds {
    EnvelopeBounds::new(&gateway_limits())
}

fn samples() -> Vec<Vec<u8>> {
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    let paths: &[&[&[u8]]] = &[
        &[b"time"],
        &[b"request_status", &[7; 32]],
        &[b"canister", &[1, 2, 3], b"metadata", b"candid:service"],
    ];
    let mut samples = Vec::new();
    for content in [call(me, "echo"), query(me, "echo"), read_state(me, paths)] {
        let mut sent = sign(&identity, content);
        samples.push(sent.encode_bytes());
        let delegation = Delegation {
            pubkey: ed25519(2).public_key().unwrap(),
            expiration: now().0,
            targets: Some(vec![canister(1)]),
            permissions: None,
        };
        let signature = identity.sign_delegation(&delegation).unwrap().signature.unwrap();
        sent.sender_delegation = Some(vec![SignedDelegation { delegation, signature }]);
        samples.push(sent.encode_bytes());
    }
    samples
}

fn try_all(body: &[u8]) {
    if let Ok(envelope) = Envelope::decode(body, &bounds()) {
        let config = AuthConfig::new(
            SubnetKey::new(1).public(),
            Duration::from_secs(300),
            Duration::from_secs(60),
        );
        let _ = authenticate(&envelope, now(), &config);
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize, usize),
    Truncate(usize),
    Repeat(usize, usize),
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let mutation = prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        2 => (any::<usize>(), 1..20usize).prop_map(|(at, length)| Mutation::Remove(at, length)),
        1 => any::<usize>().prop_map(Mutation::Truncate),
        1 => (any::<usize>(), 1..64usize).prop_map(|(at, length)| Mutation::Repeat(at, length)),
    ];
    prop::collection::vec(mutation, 1..6)
}

fn mutate(body: &mut Vec<u8>, mutation: &Mutation) {
    let length = body.len().max(1);
    match *mutation {
        Mutation::Set(at, byte) => {
            if let Some(found) = body.get_mut(at % length) {
                *found = byte;
            }
        }
        Mutation::Insert(at, byte) => body.insert(at % length.min(body.len() + 1), byte),
        Mutation::Remove(at, count) => {
            let at = (at % length).min(body.len());
            let end = (at + count).min(body.len());
            body.drain(at..end);
        }
        Mutation::Truncate(at) => body.truncate(at % length),
        Mutation::Repeat(at, count) => {
            let at = (at % length).min(body.len());
            let end = (at + count).min(body.len());
            let part = body[at..end].to_vec();
            body.splice(at..at, part);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn mutated_envelopes_never_panic(which in 0..6usize, mutations in mutations()) {
        let mut body = samples().swap_remove(which);
        for mutation in &mutations {
            mutate(&mut body, mutation);
        }
        try_all(&body);
    }

    #[test]
    fn arbitrary_bytes_never_panic(body in prop::collection::vec(any::<u8>(), 0..512)) {
        try_all(&body);
    }

    #[test]
    fn the_request_id_is_the_clients(
        method in ".{0,40}",
        arg in prop::collection::vec(any::<u8>(), 0..300),
        nonce in prop::option::of(prop::collection::vec(any::<u8>(), 0..=32)),
        ingress_expiry in any::<u64>(),
        sender in prop::collection::vec(any::<u8>(), 0..=29),
    ) {
        let sender = ic_principal::Principal::from_slice(&sender);
        let content = EnvelopeContent::Call { nonce, ingress_expiry, sender, canister_id: canister(1), method_name: method.clone(), arg: arg.clone(), sender_info: None };
        let sent = ic_transport_types::Envelope { content: std::borrow::Cow::Borrowed(&content), sender_pubkey: None, sender_sig: None, sender_delegation: None };
        let decoded = Envelope::decode(&sent.encode_bytes(), &bounds()).unwrap();
        let expected = content.to_request_id();
        prop_assert_eq!(&decoded.request_id.0[..], expected.as_slice());
        prop_assert_eq!(decoded.content.sender, sender);
        prop_assert_eq!(decoded.content.ingress_expiry, ingress_expiry);
        let Request::Call(call) = decoded.content.request else { panic!("a call") };
        prop_assert_eq!((call.method_name, call.arg), (method, arg));
    }
}

#[test]
fn truncations_of_every_length_are_refused() {
    for body in samples() {
        assert!(Envelope::decode(&body, &bounds()).is_ok());
        for length in 0..body.len() {
            assert!(Envelope::decode(&body[..length], &bounds()).is_err());
        }
    }
}

#[test]
fn limits_on_delegations_are_named() {
    let identity = ed25519(1);
    let link = |targets: usize| {
        let delegation = Delegation {
            pubkey: vec![1],
            expiration: 1,
            targets: Some(vec![canister(1); targets]),
            permissions: None,
        };
        SignedDelegation { delegation, signature: vec![2] }
    };
    let refused = |chain: Vec<SignedDelegation>| {
        let mut sent = sign(&identity, query(identity.sender().unwrap(), "echo"));
        sent.sender_delegation = Some(chain);
        Envelope::decode(&sent.encode_bytes(), &bounds())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(refused(vec![link(1000)]), Ok(()));
    assert!(refused(vec![link(1001)]).unwrap_err().contains("1001 exceeds the limit of 1000"));
    assert_eq!(refused(vec![link(1); 20]), Ok(()));
    assert!(refused(vec![link(1); 21]).unwrap_err().contains("21 exceeds the limit of 20"));
}

#[test]
fn calls_that_install_code_are_known_by_their_bytes() {
    let identity = ed25519(1);
    let me = identity.sender().unwrap();
    let known = |management: bool, method: &str, tell: &[u8]| {
        let mut content = call(me, method);
        if let EnvelopeContent::Call { canister_id, arg, .. } = &mut content
            && management
        {
            *canister_id = ic_agent::export::Principal::management_canister();
            *arg = tell.to_vec();
        }
        let body = sign(&identity, content).encode_bytes();
        may_install_code(&canonical(&body, &bounds()).unwrap())
    };
    assert!(known(true, "install_code", b"\0asm"));
    assert!(known(true, "install_chunked_code", b""));
    assert!(known(true, "install_code", &vec![7; 1 << 20]));
    assert!(!known(false, "install_code", b""));
    for other in ["install_cod", "install_code_", "uninstall_code", "upload_chunk"] {
        assert!(!known(true, other, b"install_code"), "{other}");
    }
}
