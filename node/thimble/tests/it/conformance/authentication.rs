//! Chapter "Canister signatures", and related rules: a canister that signs for users, and informs
//! other canisters about them.

use candid::Principal;
use ic_agent::agent::{Envelope, EnvelopeContent};
use ic_certification::{HashTree, fork, labeled, leaf, pruned};
use ic_transport_types::{Delegation, SenderInfo, SignedDelegation};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::{
    fixture::*,
    http::{answer, at, bare, call, identity, query, refused, sealed, send},
    program::*,
};

/// 1.3.6.1.4.1.56387.1.2, in DER.
const ALGORITHM: [u8; 12] =
    [0x06, 0x0a, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xb8, 0x43, 0x01, 0x02];
const SEED: &[u8] = b"user 1";

/// A canister that signs for the user of a seed.
struct Signer(Universal);

#[derive(Serialize)]
struct Signature {
    #[serde(with = "serde_bytes")]
    certificate: Vec<u8>,
    tree: HashTree,
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    assert!(content.len() < 128);
    [&[tag, content.len() as u8], content].concat()
}

fn tagged(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut serializer = serde_cbor_2::Serializer::new(&mut bytes);
    serializer.self_describe().unwrap();
    value.serialize(&mut serializer).unwrap();
    bytes
}

impl Signer {
    async fn new(world: &World) -> Self {
        Self(world.canister().await)
    }

    /// The public key of the user.
    fn key(&self) -> Vec<u8> {
        let id = self.0.id.as_slice();
        let bits = [&[0, id.len() as u8][..], id, SEED].concat();
        element(0x30, &[element(0x30, &ALGORITHM), element(0x03, &bits)].concat())
    }

    fn user(&self) -> Principal {
        Principal::self_authenticating(self.key())
    }

    /// Has the canister certify that the user signed `payloads`, two or more; a signature of each.
    async fn sign<const N: usize>(&self, payloads: [&[u8]; N]) -> [Vec<u8>; N] {
        let mut hashes = payloads.map(|payload| Sha256::digest(payload).to_vec());
        hashes.sort();
        let tree = |shown: &[u8]| -> HashTree {
            let signed = hashes.iter().map(|hash| {
                let tree = labeled(hash.clone(), leaf([]));
                if hash == shown { tree } else { pruned(tree.digest()) }
            });
            let signed = signed.reduce(fork).unwrap();
            labeled(b"sig", labeled(Sha256::digest(SEED).to_vec(), signed))
        };
        let root = tree(&hashes[0]).digest();
        let certify = program().bytes(&root).split().import("certified_data_set");
        self.0.update(certify.then(reply(b""))).await.unwrap();
        let certificate = self.0.query(program().blob("data_certificate").reply()).await.unwrap();
        payloads.map(|payload| {
            let tree = tree(&Sha256::digest(payload));
            tagged(&Signature { certificate: certificate.clone(), tree })
        })
    }

    /// The content in an envelope that the canister signed.
    async fn sealed(&self, content: EnvelopeContent) -> Envelope<'static> {
        let payload = content.to_request_id().signable();
        let [signature, _] = self.sign([&payload, b"another"]).await;
        Envelope { sender_pubkey: Some(self.key()), sender_sig: Some(signature), ..bare(content) }
    }
}

fn caller() -> Program {
    program().blob("msg_caller").reply()
}

#[test]
fn a_canister_signs_requests_of_its_users() {
    run(async |world| {
        let (signer, canister) = (Signer::new(world).await, world.canister().await);
        let asked = signer.sealed(query(signer.user(), canister, &caller())).await;
        let told = send(world, canister.id, 3, "query", &asked).await;
        assert_eq!(answer(&told).reply.unwrap().arg, signer.user().as_slice());
        let called = signer.sealed(call(signer.user(), canister, &caller())).await;
        let told = send(world, canister.id, 4, "call", &called).await;
        assert_eq!(answer(&told).status, "replied");
    });
}

#[test]
fn a_canister_signature_of_another_request_canister_or_seed_is_refused() {
    run(async |world| {
        let (signer, canister) = (Signer::new(world).await, world.canister().await);
        let asked = || query(signer.user(), canister, &caller());
        let good = signer.sealed(asked()).await;
        let other = signer.sealed(query(signer.user(), canister, &reply(b"other"))).await;
        let swapped = Envelope { sender_sig: other.sender_sig, ..good.clone() };
        refused(send(world, canister.id, 3, "query", &swapped).await);
        let stranger = Signer::new(world).await;
        let payload = asked().to_request_id().signable();
        let [signature, _] = stranger.sign([&payload, b"another"]).await;
        let foreign = Envelope { sender_sig: Some(signature), ..good.clone() };
        refused(send(world, canister.id, 3, "query", &foreign).await);
        // The canister has certified something else since; what it certified before still holds.
        let told = send(world, canister.id, 3, "query", &good).await;
        assert_eq!(answer(&told).status, "replied");
        let mut key = signer.key();
        *key.last_mut().unwrap() ^= 1;
        let sender = Principal::self_authenticating(&key);
        let content = query(sender, canister, &caller());
        let envelope = signer.sealed(content).await;
        refused(
            send(
                world,
                canister.id,
                3,
                "query",
                &Envelope { sender_pubkey: Some(key), ..envelope },
            )
            .await,
        );
    });
}

#[test]
fn a_canister_delegates_to_a_session_key() {
    run(async |world| {
        let (signer, canister) = (Signer::new(world).await, world.canister().await);
        let session = identity(40);
        let key = ic_agent::Identity::public_key(&session).unwrap();
        let delegation =
            Delegation { pubkey: key, expiration: at(300), targets: None, permissions: None };
        let [signature, _] = signer.sign([&delegation.signable(), b"another"]).await;
        let content = query(signer.user(), canister, &caller());
        let envelope = Envelope {
            sender_pubkey: Some(signer.key()),
            sender_delegation: Some(vec![SignedDelegation { delegation, signature }]),
            ..sealed(&session, content)
        };
        let told = send(world, canister.id, 3, "query", &envelope).await;
        assert_eq!(answer(&told).reply.unwrap().arg, signer.user().as_slice());
    });
}

/// The content with information about its sender.
fn informed(content: EnvelopeContent, about: SenderInfo) -> EnvelopeContent {
    let mut content = content;
    if let EnvelopeContent::Call { sender_info, .. } | EnvelopeContent::Query { sender_info, .. } =
        &mut content
    {
        *sender_info = Some(about);
    }
    content
}

#[test]
fn the_canister_that_signs_tells_others_about_its_user() {
    const INFO: &[u8] = b"verified: user@example.org";
    run(async |world| {
        let (signer, canister) = (Signer::new(world).await, world.canister().await);
        let what = program()
            .blob("msg_caller_info_data")
            .append()
            .blob("msg_caller_info_signer")
            .append()
            .import("msg_reply");
        let domain = [b"\x0Eic-sender-info", INFO].concat();
        let [sig, _] = signer.sign([&domain, b"another"]).await;
        let about = |signer: Principal, info: &[u8], sig: &[u8]| SenderInfo {
            info: info.to_vec(),
            signer: signer.as_slice().to_vec(),
            sig: sig.to_vec(),
        };
        let good = about(signer.0.id, INFO, &sig);
        let asked = || query(signer.user(), canister, &what);
        let told = signer.sealed(informed(asked(), good.clone())).await;
        let told = send(world, canister.id, 3, "query", &told).await;
        let expected = [INFO, signer.0.id.as_slice()].concat();
        assert_eq!(answer(&told).reply.unwrap().arg, expected);
        let called = signer.sealed(informed(call(signer.user(), canister, &what), good)).await;
        let told = send(world, canister.id, 4, "call", &called).await;
        assert_eq!(answer(&told).status, "replied");

        for wrong in [
            about(canister.id, INFO, &sig),
            about(signer.0.id, b"verified: another", &sig),
            about(signer.0.id, INFO, b""),
        ] {
            let sent = signer.sealed(informed(asked(), wrong)).await;
            refused(send(world, canister.id, 3, "query", &sent).await);
        }
        // Sender information is accepted only from senders with a canister's key.
        let key = identity(41);
        let content = query(ic_agent::Identity::sender(&key).unwrap(), canister, &what);
        let sent = sealed(&key, informed(content, about(signer.0.id, INFO, &sig)));
        refused(send(world, canister.id, 3, "query", &sent).await);
    });
}

/// 1.3.6.1.4.1.56387.1.1, in DER.
const COSE_KEY: [u8; 12] = [0x06, 0x0a, 0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xb8, 0x43, 0x01, 0x01];

/// Answer of an authenticator.
#[derive(Serialize)]
struct Assertion {
    #[serde(with = "serde_bytes")]
    authenticator_data: Vec<u8>,
    client_data_json: String,
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
}

/// The public key of an authenticator on curve P-256.
fn authenticator_key(secret: &p256::SecretKey) -> Vec<u8> {
    use p256::elliptic_curve::sec1::ToEncodedPoint as _;
    use serde_cbor_2::Value::{Bytes, Integer};
    let point = secret.public_key().to_encoded_point(false);
    let entries = [
        (1, Integer(2)),
        (3, Integer(-7)),
        (-1, Integer(1)),
        (-2, Bytes(point.x().unwrap().to_vec())),
        (-3, Bytes(point.y().unwrap().to_vec())),
    ];
    let map = entries.into_iter().map(|(key, value)| (Integer(key), value)).collect();
    let cose = serde_cbor_2::to_vec(&serde_cbor_2::Value::Map(map)).unwrap();
    let bits = [&[0][..], &cose].concat();
    element(0x30, &[element(0x30, &COSE_KEY), element(0x03, &bits)].concat())
}

/// An answer of the authenticator to `challenge`, a request or what else a client asked it.
fn asserted(secret: &p256::SecretKey, challenge: &[u8]) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
    use p256::ecdsa::signature::Signer as _;
    let authenticator_data = [&Sha256::digest("example.org")[..], &[1, 0, 0, 0, 7]].concat();
    let challenge = URL_SAFE_NO_PAD.encode(challenge);
    let client_data_json = format!(
        r#"{{"type":"webauthn.get","challenge":"{challenge}","origin":"https://example.org"}}"#
    );
    let signed = [&authenticator_data[..], &Sha256::digest(&client_data_json)].concat();
    let signature: p256::ecdsa::DerSignature =
        p256::ecdsa::SigningKey::from(secret.clone()).sign(&signed);
    let signature = signature.as_bytes().to_vec();
    tagged(&Assertion { authenticator_data, client_data_json, signature })
}

#[test]
fn an_authenticator_of_a_browser_signs_requests() {
    run(async |world| {
        let canister = world.canister().await;
        let secret = p256::SecretKey::from_slice(&[9; 32]).unwrap();
        let key = authenticator_key(&secret);
        let user = Principal::self_authenticating(&key);
        let sealed_with = |content: EnvelopeContent, signature| Envelope {
            sender_pubkey: Some(key.clone()),
            sender_sig: Some(signature),
            ..bare(content)
        };
        let content = call(user, canister, &caller());
        let payload = content.to_request_id().signable();
        let good = sealed_with(content, asserted(&secret, &payload));
        let told = send(world, canister.id, 4, "call", &good).await;
        assert_eq!(answer(&told).status, "replied");
        let content = query(user, canister, &caller());
        let payload = content.to_request_id().signable();
        let good = sealed_with(content.clone(), asserted(&secret, &payload));
        let told = send(world, canister.id, 3, "query", &good).await;
        assert_eq!(answer(&told).reply.unwrap().arg, user.as_slice());

        let stranger = p256::SecretKey::from_slice(&[10; 32]).unwrap();
        for (case, signature) in [
            ("another request", asserted(&secret, b"another")),
            ("another authenticator", asserted(&stranger, &payload)),
        ] {
            let told =
                send(world, canister.id, 3, "query", &sealed_with(content.clone(), signature))
                    .await;
            assert!((400..500).contains(&told.0), "{case}: {}", told.0);
        }
    });
}
