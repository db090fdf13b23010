//! Envelope authentication, scheme by scheme: valid envelopes, and what each falsification is
//! refused with.

use std::time::Duration;

use envelope::{
    Envelope, EnvelopeBounds,
    auth::{AuthConfig, AuthError, AuthenticatedSender, authenticate, is_quick},
};
use ic_agent::{Identity, identity::BasicIdentity};
use ic_principal::Principal;
use ic_transport_types::{
    Delegation, DelegationPermissions, EnvelopeContent, SenderInfo, SignedDelegation,
};
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use sha2::{Digest, Sha256};
use state::Time;

use crate::signing::{
    SubnetKey, Tree, call, canister, ed25519, encode, gateway_limits, now, query, ranges,
    read_state, sign,
};

type WireEnvelope = ic_transport_types::Envelope<'static>;

fn config(root: &SubnetKey) -> AuthConfig {
    AuthConfig::new(root.public(), Duration::from_secs(300), Duration::from_secs(60))
        .remembering(&gateway_limits())
}

fn decode(envelope: &WireEnvelope) -> Envelope {
    Envelope::decode(&envelope.encode_bytes(), &EnvelopeBounds::new(&gateway_limits())).unwrap()
}

fn check_at(envelope: &WireEnvelope, now: Time) -> Result<AuthenticatedSender, AuthError> {
    authenticate(&decode(envelope), now, &config(&SubnetKey::new(1)))
}

fn check(envelope: &WireEnvelope) -> Result<AuthenticatedSender, AuthError> {
    check_at(envelope, now())
}

/// An identity made of a key in DER and a way to sign.
struct Custom<F> {
    der: Vec<u8>,
    sign: F,
}

impl<F: Fn(&[u8]) -> Vec<u8>> Custom<F> {
    fn principal(&self) -> Principal {
        Principal::self_authenticating(&self.der)
    }

    fn envelope(&self, content: EnvelopeContent) -> WireEnvelope {
        let payload = content.to_request_id().signable();
        ic_transport_types::Envelope {
            content: std::borrow::Cow::Owned(content),
            sender_pubkey: Some(self.der.clone()),
            sender_sig: Some((self.sign)(&payload)),
            sender_delegation: None,
        }
    }
}

/// SubjectPublicKeyInfo of one object identifier without parameters.
fn spki(oid: &[u8], key: &[u8]) -> Vec<u8> {
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = match content.len() {
            length @ 0..=0x7f => vec![length as u8],
            length @ 0x80..=0xff => vec![0x81, length as u8],
            length => vec![0x82, (length >> 8) as u8, length as u8],
        };
        [&[tag][..], &length, content].concat()
    }
    let algorithm = element(0x30, &element(0x06, oid));
    let bits = element(0x03, &[&[0], key].concat());
    element(0x30, &[algorithm, bits].concat())
}

const COSE: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xb8, 0x43, 0x01, 0x01];
const CANISTER: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xb8, 0x43, 0x01, 0x02];

fn cose(entries: &[(i128, serde_cbor_2::Value)]) -> Vec<u8> {
    let map = entries
        .iter()
        .map(|(key, value)| (serde_cbor_2::Value::Integer(*key), value.clone()))
        .collect();
    spki(COSE, &serde_cbor_2::to_vec(&serde_cbor_2::Value::Map(map)).unwrap())
}

fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let bits: Vec<u8> =
        bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    bits.chunks(6)
        .map(|group| {
            char::from(
                ALPHABET[(0..6)
                    .fold(0, |index, bit| index << 1 | usize::from(*group.get(bit).unwrap_or(&0)))],
            )
        })
        .collect()
}

#[derive(serde::Serialize)]
struct Assertion {
    #[serde(with = "serde_bytes")]
    authenticator_data: Vec<u8>,
    client_data_json: String,
    #[serde(with = "serde_bytes")]
    signature: Vec<u8>,
}

fn assertion(payload: &[u8], sign: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let authenticator_data = vec![5; 37];
    let client_data_json = format!(
        r#"{{"type":"webauthn.get","challenge":"{}","origin":"https://example.org","crossOrigin":false}}"#,
        base64url(payload)
    );
    let signature = sign(&[&authenticator_data[..], &Sha256::digest(&client_data_json)].concat());
    encode(&Assertion { authenticator_data, client_data_json, signature })
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, in order")]
fn web_authentication_keys_of_all_three_kinds() {
    use serde_cbor_2::Value::{Bytes, Integer};
    let random = ring::rand::SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
    let p256 =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.as_ref(), &random).unwrap();
    let point = p256.public_key().as_ref().to_vec();
    let p256_der = cose(&[
        (1, Integer(2)),
        (3, Integer(-7)),
        (-1, Integer(1)),
        (-2, Bytes(point[1..33].to_vec())),
        (-3, Bytes(point[33..].to_vec())),
    ]);
    let p256 = Custom {
        der: p256_der,
        sign: |payload: &[u8]| {
            assertion(payload, |message| p256.sign(&random, message).unwrap().as_ref().to_vec())
        },
    };

    let rsa =
        RsaKeyPair::from_pkcs8(include_bytes!("../data/test-only-rsa-2048.pkcs8.der")).unwrap();
    let public = ring::rsa::PublicKeyComponents::<Vec<u8>>::from(rsa.public_key());
    let rsa_der =
        cose(&[(1, Integer(3)), (3, Integer(-257)), (-1, Bytes(public.n)), (-2, Bytes(public.e))]);
    let sign_rsa = |message: &[u8]| {
        let mut signature = vec![0; rsa.public().modulus_len()];
        rsa.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
        signature
    };
    let rsa = Custom { der: rsa_der, sign: |payload: &[u8]| assertion(payload, sign_rsa) };

    let eddsa = Ed25519KeyPair::from_seed_unchecked(&[8; 32]).unwrap();
    let eddsa_der = cose(&[
        (1, Integer(1)),
        (3, Integer(-8)),
        (-1, Integer(6)),
        (-2, Bytes(eddsa.public_key().as_ref().to_vec())),
    ]);
    let eddsa = Custom {
        der: eddsa_der,
        sign: |payload: &[u8]| assertion(payload, |message| eddsa.sign(message).as_ref().to_vec()),
    };

    fn holds_and_breaks(name: &str, key: &Custom<impl Fn(&[u8]) -> Vec<u8>>) {
        let good = key.envelope(query(key.principal(), "echo"));
        assert_eq!(check(&good).unwrap().sender, key.principal(), "{name}");
        let refused = |envelope: &WireEnvelope| {
            assert!(matches!(check(envelope), Err(AuthError::BadSignature { .. })), "{name}")
        };
        // Signed over another request.
        let mut other = good.clone();
        other.sender_sig = key.envelope(query(key.principal(), "other")).sender_sig;
        refused(&other);
        // The challenge is right, the authenticator's signature is over something else.
        let mut fields: serde_cbor_2::Value =
            serde_cbor_2::from_slice(good.sender_sig.as_ref().unwrap()).unwrap();
        let serde_cbor_2::Value::Map(map) = &mut fields else { panic!("a map") };
        map.insert(
            serde_cbor_2::Value::Text("authenticator_data".to_owned()),
            serde_cbor_2::Value::Bytes(vec![6; 37]),
        );
        refused(&WireEnvelope { sender_sig: Some(encode(&fields)), ..good.clone() });
        refused(&WireEnvelope { sender_sig: Some(Vec::new()), ..good.clone() });
        refused(&WireEnvelope {
            sender_sig: Some(encode(&serde_cbor_2::Value::Map(
                [(
                    serde_cbor_2::Value::Text("client_data_json".to_owned()),
                    serde_cbor_2::Value::Text("{".to_owned()),
                )]
                .into(),
            ))),
            ..good.clone()
        });
    }
    holds_and_breaks("P-256", &p256);
    holds_and_breaks("RSA", &rsa);
    holds_and_breaks("Ed25519", &eddsa);
}

/// A canister that signs for the key named by `seed`, certified by `subnet`; the root key delegates
/// to it unless it is the root.
struct Canister<'a> {
    root: &'a SubnetKey,
    subnet: Option<&'a SubnetKey>,
    id: Principal,
    seed: Vec<u8>,
    subnet_type: Option<&'a str>,
    sharded: bool,
    range: (Principal, Principal),
    /// Other entries that the delegation shows.
    beside: u32,
}

impl<'a> Canister<'a> {
    fn at_root(root: &'a SubnetKey) -> Self {
        let range = (canister(1), canister(99));
        Self {
            root,
            subnet: None,
            id: canister(7),
            seed: vec![1, 2, 3],
            subnet_type: Some("application"),
            sharded: true,
            range,
            beside: 0,
        }
    }

    fn der(&self) -> Vec<u8> {
        spki(
            CANISTER,
            &[&[self.id.as_slice().len() as u8], self.id.as_slice(), &self.seed[..]].concat(),
        )
    }

    fn principal(&self) -> Principal {
        Principal::self_authenticating(self.der())
    }

    fn signature_over(&self, signed: &Tree) -> Vec<u8> {
        let mut state = Tree::default();
        state.set(&[b"time"], [1]);
        state.set(
            &[b"canister", self.id.as_slice(), b"certified_data"],
            signed.hash_tree().digest(),
        );
        state.set(&[b"canister", self.id.as_slice(), b"module_hash"], [2; 32]);
        let certificate = match self.subnet {
            None => self.root.certificate(&state, None),
            Some(subnet) => {
                let id = subnet.id();
                let mut delegation = Tree::default();
                delegation.set(&[b"time"], [1]);
                delegation.set(&[b"subnet", id.as_slice(), b"public_key"], subnet.der());
                if let Some(subnet_type) = self.subnet_type {
                    delegation.set(&[b"subnet", id.as_slice(), b"type"], subnet_type);
                }
                for number in 0..self.beside {
                    delegation.set(&[b"beside", &number.to_be_bytes()], [1]);
                }
                let hosted = ranges(&[self.range]);
                if self.sharded {
                    delegation
                        .set(&[b"canister_ranges", id.as_slice(), self.range.0.as_slice()], hosted);
                } else {
                    delegation.set(&[b"subnet", id.as_slice(), b"canister_ranges"], hosted);
                }
                subnet.certificate(&state, Some((id, self.root.certificate(&delegation, None))))
            }
        };
        #[derive(serde::Serialize)]
        struct CanisterSignature {
            #[serde(with = "serde_bytes")]
            certificate: Vec<u8>,
            tree: ic_certification::HashTree,
        }
        encode(&CanisterSignature { certificate, tree: signed.hash_tree() })
    }

    fn sign(&self, payload: &[u8]) -> Vec<u8> {
        let mut signed = Tree::default();
        signed.set(&[b"sig", &Sha256::digest(&self.seed), &Sha256::digest(payload)], []);
        signed.set(&[b"sig", &Sha256::digest(b"another seed"), &[3; 32]], []);
        self.signature_over(&signed)
    }

    fn envelope(&self, content: EnvelopeContent) -> WireEnvelope {
        Custom { der: self.der(), sign: |payload: &[u8]| self.sign(payload) }.envelope(content)
    }
}

#[test]
fn canister_signatures_with_and_without_a_subnet_delegation() {
    let (root, subnet) = (SubnetKey::new(1), SubnetKey::new(2));
    let content = |canister: &Canister<'_>| query(canister.principal(), "echo");
    let ok = |canister: &Canister<'_>| {
        assert_eq!(
            check(&canister.envelope(content(canister))).unwrap().sender,
            canister.principal()
        )
    };
    let refused = |canister: &Canister<'_>| {
        let error = check(&canister.envelope(content(canister))).unwrap_err();
        assert!(matches!(error, AuthError::BadSignature { scheme: "canister", .. }), "{error}");
    };
    let delegated = || Canister { subnet: Some(&subnet), ..Canister::at_root(&root) };
    ok(&Canister::at_root(&root));
    ok(&Canister { seed: Vec::new(), ..Canister::at_root(&root) });
    ok(&delegated());
    ok(&Canister { sharded: false, ..delegated() });
    refused(&Canister::at_root(&subnet));
    refused(&Canister { root: &subnet, ..delegated() });
    refused(&Canister { range: (canister(8), canister(99)), ..delegated() });
    refused(&Canister { range: (canister(1), canister(6)), sharded: false, ..delegated() });
    refused(&Canister { subnet_type: Some("cloud_engine"), ..delegated() });
    refused(&Canister { subnet_type: None, ..delegated() });
    // More than 4,096 items are not decoded, whatever the signer.
    ok(&Canister { beside: 100, ..delegated() });
    refused(&Canister { beside: 1_000, ..delegated() });

    // A signature over another payload, another canister's, and trees that are not signatures.
    let canister = Canister::at_root(&root);
    let good = canister.envelope(content(&canister));
    let bad = |signature: Vec<u8>| {
        assert!(check(&WireEnvelope { sender_sig: Some(signature), ..good.clone() }).is_err())
    };
    bad(canister.sign(b"another payload"));
    bad(Canister { id: self::canister(8), ..Canister::at_root(&root) }
        .sign(&good.content.to_request_id().signable()));
    let mut full = Tree::default();
    full.set(
        &[
            b"sig",
            &Sha256::digest(&canister.seed),
            &Sha256::digest(good.content.to_request_id().signable()),
        ],
        [1],
    );
    bad(canister.signature_over(&full));
    let signature = good.sender_sig.clone().unwrap();
    for length in [0, 1, signature.len() / 2, signature.len() - 1] {
        bad(signature[..length].to_vec());
    }
    for at in (0..signature.len()).step_by(7) {
        let mut flipped = signature.clone();
        flipped[at] ^= 1;
        bad(flipped);
    }
}

#[test]
fn a_certificate_verified_once_stays_verified_and_no_other() {
    let root = SubnetKey::new(1);
    let config = config(&root);
    let canister = Canister::at_root(&root);
    let good = canister.envelope(query(canister.principal(), "echo"));
    for _ in 0..3 {
        authenticate(&decode(&good), now(), &config).unwrap();
    }
    let other = canister.envelope(query(canister.principal(), "other"));
    let swapped = WireEnvelope { sender_sig: other.sender_sig, ..good };
    assert!(authenticate(&decode(&swapped), now(), &config).is_err());
}

#[test]
fn a_canister_delegates_to_a_session_key_as_identity_providers_do() {
    let root = SubnetKey::new(1);
    let canister = Canister::at_root(&root);
    let session = ed25519(9);
    let delegation = Delegation {
        pubkey: session.public_key().unwrap(),
        expiration: now().0 + 1_000_000_000,
        targets: None,
        permissions: None,
    };
    let signature = canister.sign(&delegation.signable());
    let content = call(canister.principal(), "echo");
    let sender_sig = session.sign_arbitrary(&content.to_request_id().signable()).unwrap().signature;
    let sent = WireEnvelope {
        content: std::borrow::Cow::Owned(content),
        sender_pubkey: Some(canister.der()),
        sender_sig,
        sender_delegation: Some(vec![SignedDelegation { delegation, signature }]),
    };
    assert_eq!(check(&sent).unwrap().sender, canister.principal());
}

#[test]
fn sender_info_is_the_signing_canisters() {
    let root = SubnetKey::new(1);
    let canister = Canister::at_root(&root);
    let info = b"a verified e-mail address".to_vec();
    let with = |signer: Principal, info: Vec<u8>, sig: Vec<u8>, mut content: EnvelopeContent| {
        let (EnvelopeContent::Call { sender_info, .. }
        | EnvelopeContent::Query { sender_info, .. }) = &mut content
        else {
            panic!("no sender_info")
        };
        *sender_info = Some(SenderInfo { info, signer: signer.as_slice().to_vec(), sig });
        content
    };
    let sig = canister.sign(&[b"\x0Eic-sender-info", &info[..]].concat());
    for content in [call(canister.principal(), "echo"), query(canister.principal(), "echo")] {
        let sent = canister.envelope(with(canister.id, info.clone(), sig.clone(), content));
        let verified = check(&sent).unwrap().sender_info.unwrap();
        assert_eq!((verified.info, verified.signer), (info.clone(), canister.id));
    }
    let content = || query(canister.principal(), "echo");
    let other_signer =
        canister.envelope(with(self::canister(8), info.clone(), sig.clone(), content()));
    assert!(matches!(check(&other_signer), Err(AuthError::SenderInfoSigner { .. })));
    let other_info =
        canister.envelope(with(canister.id, b"another".to_vec(), sig.clone(), content()));
    assert!(matches!(check(&other_info), Err(AuthError::BadSignature { .. })));
    let plain = ed25519(1);
    let not_a_canister = sign(
        &plain,
        with(canister.id, info.clone(), sig.clone(), query(plain.sender().unwrap(), "echo")),
    );
    assert_eq!(check(&not_a_canister), Err(AuthError::SenderInfoWithoutCanisterKey));
    let anonymous = sign(
        &ic_agent::identity::AnonymousIdentity,
        with(canister.id, info, sig, query(Principal::anonymous(), "echo")),
    );
    assert_eq!(check(&anonymous), Err(AuthError::AnonymousWith { field: "sender_info" }));
}

/// A chain of Ed25519 keys, each delegating to the next.
struct Chain {
    keys: Vec<BasicIdentity>,
    delegations: Vec<Delegation>,
}

impl Chain {
    fn from_seeds(seeds: &[u8]) -> Self {
        let keys: Vec<_> = seeds.iter().map(|seed| ed25519(*seed)).collect();
        let delegations = keys[1..]
            .iter()
            .map(|key| Delegation {
                pubkey: key.public_key().unwrap(),
                expiration: now().0 + 60_000_000_000,
                targets: None,
                permissions: None,
            })
            .collect();
        Self { keys, delegations }
    }

    fn sender(&self) -> Principal {
        self.keys[0].sender().unwrap()
    }

    fn with(mut self, at: usize, change: impl FnOnce(&mut Delegation)) -> Self {
        change(&mut self.delegations[at]);
        self
    }

    fn envelope(&self, content: EnvelopeContent) -> WireEnvelope {
        let signed =
            self.delegations.iter().zip(&self.keys).map(|(delegation, key)| SignedDelegation {
                delegation: delegation.clone(),
                signature: key.sign_delegation(delegation).unwrap().signature.unwrap(),
            });
        let signature =
            self.keys.last().unwrap().sign_arbitrary(&content.to_request_id().signable()).unwrap();
        WireEnvelope {
            content: std::borrow::Cow::Owned(content),
            sender_pubkey: self.keys[0].public_key(),
            sender_sig: signature.signature,
            sender_delegation: Some(signed.collect()),
        }
    }
}

#[test]
fn remembered_keys_and_delegations_change_no_verdict() {
    let config = config(&SubnetKey::new(1));
    let sender = Chain::from_seeds(&[1]).sender();
    let sent = Chain::from_seeds(&[1, 2]).envelope(call(sender, "echo"));
    for _ in 0..3 {
        assert_eq!(authenticate(&decode(&sent), now(), &config).unwrap().sender, sender);
    }
    // Each part of what was verified is replaced by one of another valid envelope.
    let other = Chain::from_seeds(&[1, 3]).envelope(call(sender, "other"));
    assert!(authenticate(&decode(&other), now(), &config).is_ok());
    let links = |from: &WireEnvelope| from.sender_delegation.clone().unwrap();
    let mut mixed = links(&sent);
    mixed[0].signature = links(&other)[0].signature.clone();
    let by_another = Chain::from_seeds(&[2, 1]).envelope(call(sender, "echo"));
    for refused in [
        WireEnvelope { sender_sig: other.sender_sig.clone(), ..sent.clone() },
        WireEnvelope { sender_delegation: Some(links(&other)), ..sent.clone() },
        WireEnvelope { sender_delegation: Some(mixed), ..sent.clone() },
        WireEnvelope { sender_pubkey: by_another.sender_pubkey, ..sent.clone() },
    ] {
        for _ in 0..2 {
            assert!(authenticate(&decode(&refused), now(), &config).is_err());
        }
    }
    // A verified delegation still expires, and more keys than are remembered still verify.
    let late = Time(now().0 + 61_000_000_000);
    assert!(matches!(
        authenticate(&decode(&sent), late, &config),
        Err(AuthError::DelegationExpired { index: 0, .. })
    ));
    for round in 0..2 {
        for seed in 1..40 {
            let chain = Chain::from_seeds(&[seed, seed + 100]);
            let sent = chain.envelope(call(chain.sender(), "echo"));
            assert!(authenticate(&decode(&sent), now(), &config).is_ok(), "{round} {seed}");
        }
    }
}

#[test]
fn requests_with_one_or_two_short_signatures_are_quick() {
    let quick = |sent: &WireEnvelope| is_quick(&decode(sent));
    let of_chain = |seeds: &[u8]| {
        let chain = Chain::from_seeds(seeds);
        chain.envelope(call(chain.sender(), "echo"))
    };
    assert!(quick(&of_chain(&[1])) && quick(&of_chain(&[1, 2])));
    assert!(!quick(&of_chain(&[1, 2, 3])));
    let root = SubnetKey::new(1);
    let canister = Canister::at_root(&root);
    assert!(!quick(&canister.envelope(query(canister.principal(), "echo"))));
}

#[test]
#[expect(clippy::too_many_lines, reason = "one story, in order")]
fn delegation_chains_and_their_restrictions() {
    let chain = Chain::from_seeds(&[1, 2, 3]);
    let sender = chain.sender();
    assert_eq!(check(&chain.envelope(call(sender, "echo"))).unwrap().targets, None);
    assert!(
        check(&Chain::from_seeds(&[1]).envelope(call(sender, "echo"))).is_ok(),
        "an empty chain"
    );
    let longest: Vec<u8> = (1..=21).collect();
    assert!(check(&Chain::from_seeds(&longest).envelope(call(sender, "echo"))).is_ok());

    // Targets intersect.
    let targeted = |first: Vec<Principal>, second: Vec<Principal>| {
        Chain::from_seeds(&[1, 2, 3])
            .with(0, |link| link.targets = Some(first))
            .with(1, |link| link.targets = Some(second))
    };
    let both = targeted(vec![canister(1), canister(2)], vec![canister(3), canister(1)]);
    assert_eq!(
        check(&both.envelope(call(sender, "echo"))).unwrap().targets,
        Some([canister(1)].into())
    );
    let neither = targeted(vec![canister(1)], vec![canister(2)]);
    assert_eq!(
        check(&neither.envelope(call(sender, "echo"))),
        Err(AuthError::NotATarget { canister_id: canister(1) })
    );
    assert_eq!(
        check(&neither.envelope(read_state(sender, &[&[b"time"]]))).unwrap().targets,
        Some([].into()),
        "read_state has no callee"
    );
    let none = Chain::from_seeds(&[1, 2]).with(0, |link| link.targets = Some(Vec::new()));
    assert_eq!(
        check(&none.envelope(query(sender, "echo"))),
        Err(AuthError::NotATarget { canister_id: canister(1) })
    );

    // Permissions: one link restricts the whole chain, a later one does not lift it.
    let restricted = Chain::from_seeds(&[1, 2, 3])
        .with(0, |link| link.permissions = Some(DelegationPermissions::Queries))
        .with(1, |link| link.permissions = Some(DelegationPermissions::All));
    assert_eq!(
        check(&restricted.envelope(call(sender, "echo"))),
        Err(AuthError::QueriesOnly { index: 0 })
    );
    assert!(check(&restricted.envelope(query(sender, "echo"))).is_ok());
    assert!(check(&restricted.envelope(read_state(sender, &[]))).is_ok());

    // Expiry, keys that occur twice, and links signed by the wrong key.
    let soon = now().0 + 60_000_000_000;
    let later = Time(soon + 1);
    assert!(
        check_at(
            &Chain::from_seeds(&[1, 2])
                .with(0, |link| link.expiration = soon)
                .envelope(query(sender, "echo")),
            Time(soon)
        )
        .is_ok()
    );
    let expired = check_at(
        &Chain::from_seeds(&[1, 2])
            .with(0, |link| link.expiration = soon)
            .envelope(query(sender, "echo")),
        later,
    )
    .unwrap_err();
    assert_eq!(expired, AuthError::DelegationExpired { index: 0, expiration: soon, now: later.0 });
    for (seeds, index) in [(&[1, 1][..], 0), (&[1, 2, 1], 1), (&[1, 2, 3, 2], 2)] {
        assert_eq!(
            check(&Chain::from_seeds(seeds).envelope(query(sender, "echo"))),
            Err(AuthError::DelegationCycle { index })
        );
    }
    let mut forged = Chain::from_seeds(&[1, 2]).envelope(query(sender, "echo"));
    forged.sender_delegation =
        Chain::from_seeds(&[3, 2]).envelope(query(sender, "echo")).sender_delegation;
    assert!(matches!(check(&forged), Err(AuthError::BadSignature { .. })));
    let mut widened = Chain::from_seeds(&[1, 2])
        .with(0, |link| link.targets = Some(vec![canister(2)]))
        .envelope(query(sender, "echo"));
    widened.sender_delegation.as_mut().unwrap()[0].delegation.targets = None;
    assert!(matches!(check(&widened), Err(AuthError::BadSignature { .. })));
}

#[test]
fn expiry_has_a_window_that_errors_name() {
    let at = now();
    let with_expiry = |expiry: u64,
                       anonymous: bool,
                       make: fn(Principal, &str) -> EnvelopeContent| {
        let identity = ed25519(1);
        let sender = if anonymous { Principal::anonymous() } else { identity.sender().unwrap() };
        let mut content = make(sender, "echo");
        let (EnvelopeContent::Call { ingress_expiry, .. }
        | EnvelopeContent::Query { ingress_expiry, .. }
        | EnvelopeContent::ReadState { ingress_expiry, .. }) = &mut content;
        *ingress_expiry = expiry;
        if anonymous {
            sign(&ic_agent::identity::AnonymousIdentity, content)
        } else {
            sign(&identity, content)
        }
    };
    let limit = at.0 + 360_000_000_000;
    let read = |sender: Principal, _: &str| read_state(sender, &[&[b"time"]]);
    for make in [call, query, read] {
        assert!(check_at(&with_expiry(at.0, false, make), at).is_ok());
        assert!(check_at(&with_expiry(limit, false, make), at).is_ok());
        assert_eq!(
            check_at(&with_expiry(at.0 - 1, false, make), at),
            Err(AuthError::Expired { expiry: at.0 - 1, now: at.0 })
        );
        let error = check_at(&with_expiry(limit + 1, false, make), at).unwrap_err();
        assert_eq!(
            error,
            AuthError::TooFarAhead { expiry: limit + 1, now: at.0, limit, window_seconds: 360 }
        );
        for number in [limit + 1, at.0, limit] {
            assert!(error.to_string().contains(&number.to_string()), "{error}");
        }
    }
    // Anonymous reads may carry anything, anonymous calls may not.
    for expiry in [0, u64::MAX] {
        assert!(check_at(&with_expiry(expiry, true, query), at).is_ok());
        assert!(check_at(&with_expiry(expiry, true, read), at).is_ok());
        assert!(check_at(&with_expiry(expiry, true, call), at).is_err());
    }
}

#[test]
fn the_sender_must_be_the_keys() {
    let identity = ed25519(1);
    let sender = identity.sender().unwrap();
    let good = sign(&identity, query(sender, "echo"));
    let other = ed25519(2).sender().unwrap();
    assert_eq!(
        check(&sign(&identity, query(other, "echo"))),
        Err(AuthError::WrongSender { sender: other, derived: sender })
    );
    assert_eq!(
        check(&WireEnvelope { sender_pubkey: None, ..good.clone() }),
        Err(AuthError::Unsigned { sender, field: "sender_pubkey" })
    );
    assert_eq!(
        check(&WireEnvelope { sender_sig: None, ..good.clone() }),
        Err(AuthError::Unsigned { sender, field: "sender_sig" })
    );
    let anonymous = query(Principal::anonymous(), "echo");
    let content = || std::borrow::Cow::Owned(anonymous.clone());
    let unsigned = WireEnvelope {
        content: content(),
        sender_pubkey: None,
        sender_sig: None,
        sender_delegation: None,
    };
    assert!(check(&unsigned).is_ok());
    assert_eq!(
        check(&WireEnvelope { content: content(), ..good.clone() }),
        Err(AuthError::AnonymousWith { field: "sender_pubkey" })
    );
    assert_eq!(
        check(&WireEnvelope { sender_sig: Some(Vec::new()), ..unsigned.clone() }),
        Err(AuthError::AnonymousWith { field: "sender_sig" })
    );
    assert_eq!(
        check(&WireEnvelope { sender_delegation: Some(Vec::new()), ..unsigned }),
        Err(AuthError::AnonymousWith { field: "sender_delegation" })
    );
}

#[test]
fn plain_signatures_break_with_every_byte() {
    let p256 = ic_agent::identity::Prime256v1Identity::from_private_key(
        p256::SecretKey::from_slice(&[2; 32]).unwrap(),
    );
    let k256 = ic_agent::identity::Secp256k1Identity::from_private_key(
        k256::SecretKey::from_slice(&[3; 32]).unwrap(),
    );
    let identities: [(&str, &dyn Identity); 3] =
        [("Ed25519", &ed25519(1)), ("P-256", &p256), ("secp256k1", &k256)];
    for (name, identity) in identities {
        let good = sign(identity, query(identity.sender().unwrap(), "echo"));
        assert!(check(&good).is_ok(), "{name}");
        let signature = good.sender_sig.clone().unwrap();
        assert_eq!(signature.len(), 64);
        for at in 0..64 {
            let mut flipped = signature.clone();
            flipped[at] ^= 0x10;
            assert!(
                matches!(
                    check(&WireEnvelope { sender_sig: Some(flipped), ..good.clone() }),
                    Err(AuthError::BadSignature { .. })
                ),
                "{name} {at}"
            );
        }
        for wrong in [&signature[..63], &[][..], &[0; 64], &[0xff; 64]] {
            assert!(
                check(&WireEnvelope { sender_sig: Some(wrong.to_vec()), ..good.clone() }).is_err(),
                "{name}"
            );
        }
        // A key that is not exactly its encoding: every truncation and every extension changes the
        // principal, so claim that one.
        let der = good.sender_pubkey.clone().unwrap();
        for malformed in [
            der[..der.len() - 1].to_vec(),
            [&der[..], &[0]].concat(),
            der[1..].to_vec(),
            vec![0x30, 0x80],
            Vec::new(),
            vec![0x30; 4096],
        ] {
            let content = query(Principal::self_authenticating(&malformed), "echo");
            let sent = WireEnvelope {
                content: std::borrow::Cow::Owned(content),
                sender_pubkey: Some(malformed),
                ..good.clone()
            };
            let error = check(&sent).unwrap_err();
            assert!(matches!(error, AuthError::Key { .. }), "{name}: {error}");
        }
    }
}

#[test]
fn ecdsa_signatures_hold_with_either_s() {
    let identity = ic_agent::identity::Secp256k1Identity::from_private_key(
        k256::SecretKey::from_slice(&[3; 32]).unwrap(),
    );
    let good = sign(&identity, query(identity.sender().unwrap(), "echo"));
    let low = k256::ecdsa::Signature::from_slice(good.sender_sig.as_ref().unwrap()).unwrap();
    let high =
        k256::ecdsa::Signature::from_scalars(low.r().to_bytes(), (-*low.s()).to_bytes()).unwrap();
    assert!(high.normalize_s().is_some() || low.normalize_s().is_some());
    assert!(check(&WireEnvelope { sender_sig: Some(high.to_vec()), ..good }).is_ok());
}
