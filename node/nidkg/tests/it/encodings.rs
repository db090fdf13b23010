//! Encodings: canonical, length-checked, pinned.

use nidkg::{
    Dealing, DecodeError, EncryptionPublicKey, EncryptionSecretKey, Epoch, KeyError, Source,
    Transcript, create_transcript, generate_key_pair,
};
use sha2::{Digest, Sha256};

use crate::support::*;

fn hash(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes)[..16])
}

// Promise: P8 - Encodings of the key generation are pinned.
/// Known answers: everything is a function of its arguments and the seed. A hash that changes means
/// another format, other parameters or other proofs; old and new nodes then do not understand each
/// other, and the version byte has to be raised.
#[test]
fn known_answers() {
    let (engine, mut rng) = (engine(), rng(1_000));
    let mut nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(7, 11);
    let dealings = deal(&engine, &session, 2, &mut rng);
    let dealing = dealings[0].1.to_bytes();
    let verified = verified(&engine, &session, dealings, &mut rng);
    let transcript = create_transcript(&engine, &session, &verified).unwrap();
    let share = transcript.load(&engine, &session, nidkg::NodeIndex(1), &nodes.secret[1]).unwrap();
    let fresh = nodes.secret[0].to_bytes();
    nodes.secret[0].update_to(Epoch(11), &mut rng).unwrap();
    let signature = share.sign(b"message").0;
    let found = [
        ("public key", hash(&nodes.public[0].to_bytes())),
        ("fresh secret key", hash(&fresh)),
        ("secret key at epoch 11", hash(&nodes.secret[0].to_bytes())),
        ("dealing", hash(&dealing)),
        ("transcript", hash(&transcript.to_bytes())),
        ("signature share", hash(&signature)),
        ("subnet key", hash(transcript.committee().public_key.as_bytes())),
    ];
    let pinned = [
        "public key: 3595cc1bf05356e15c6876ceb84c4657",
        "fresh secret key: 11b2892e39d8bfd5305cb9fda7c60dc7",
        "secret key at epoch 11: 962423ea95925e2b78733a7d220593eb",
        "dealing: 82ac4bedfcd3dd426dab2c8a5ef749db",
        "transcript: 52782c61ec0e513597fc9945aeae597c",
        "signature share: 2b02e863eaaac0317c3dda1b67baa546",
        "subnet key: 8a05e99a96a957db20d5ae84e9e6186e",
    ];
    assert_eq!(found.map(|(name, hash)| format!("{name}: {hash}")), pinned);
}

// Promise: P8 - Threads and tables change no byte of the key generation.
#[test]
fn the_number_of_threads_and_the_room_for_tables_change_no_byte() {
    let made = |threads: usize, table_bytes: u64| {
        let mut config = nidkg::EngineConfig::for_this_machine();
        config.threads = std::num::NonZeroUsize::new(threads).unwrap();
        config.tables = accounting::Pool::standalone("tables", table_bytes);
        config.yields = threads == 1;
        let mut engine = nidkg::Engine::new(config).unwrap();
        let mut rng = rng(1_007);
        let nodes = Nodes::new(4, &mut rng);
        let session = nodes.fresh(7, 0);
        let dealing = deal(&engine, &session, 1, &mut rng)[0].1.to_bytes();
        assert!(engine.table_bytes() <= table_bytes);
        engine.drop_tables();
        assert_eq!(engine.table_bytes(), 0);
        // Tables that were dropped come back, and the next numbers are drawn from the same place.
        (dealing, deal(&engine, &session, 1, &mut rng)[0].1.to_bytes())
    };
    let one = made(1, 32 << 20);
    assert!(one == made(3, 32 << 20), "three threads");
    assert!(one == made(2, 0), "no room for any table");
    assert!(one == made(2, 200_000), "room for two of four tables");
}

#[test]
fn sizes_are_those_of_the_specification() {
    let (engine, mut rng) = (engine(), rng(1_001));
    let nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(7, 0);
    let dealings = deal(&engine, &session, 2, &mut rng);
    let (g1, g2) = (96, 192);
    let ciphertext = 32 * g1 + 16 * g2 + 4 * 16 * g1;
    let proofs = (64 + 5 + 1) * g1 + 32 * 8 + 5 * 32 + 2 * g1 + g2 + 2 * 32;
    assert_eq!(dealings[0].1.to_bytes().len(), 2 + 8 + 3 * g2 + ciphertext + proofs);
    assert_eq!(nodes.public[0].to_bytes().len(), EncryptionPublicKey::LENGTH);
    let verified = verified(&engine, &session, dealings, &mut rng);
    let transcript = create_transcript(&engine, &session, &verified).unwrap();
    assert_eq!(transcript.to_bytes().len(), 2 + 32 + 8 + 5 * 96 + 4 + 2 * (4 + ciphertext / 2));
}

// Promise: P20 - Encodings are canonical; truncated and extended ones are refused.
#[test]
fn every_encoding_round_trips_and_refuses_every_cut_and_every_surplus() {
    let (engine, mut rng) = (engine(), rng(1_002));
    let mut nodes = Nodes::new(2, &mut rng);
    let session = nodes.fresh(7, 0);
    let dealings = deal(&engine, &session, 1, &mut rng);
    let dealing = dealings[0].1.to_bytes();
    let verified = verified(&engine, &session, dealings, &mut rng);
    let transcript = create_transcript(&engine, &session, &verified).unwrap().to_bytes();
    nodes.secret[0].update_to(Epoch(u32::MAX - 2), &mut rng).unwrap();
    let secret = nodes.secret[0].to_bytes();
    let public = nodes.public[0].to_bytes();
    type Decode<'a> = Box<dyn Fn(&[u8]) -> Option<Vec<u8>> + 'a>;
    let cases: [(&str, &[u8], Decode<'_>); 4] = [
        ("dealing", &dealing, Box::new(|b| Some(Dealing::from_bytes(b).ok()?.to_bytes()))),
        (
            "transcript",
            &transcript,
            Box::new(|b| Some(Transcript::from_bytes(&engine, b).ok()?.to_bytes())),
        ),
        (
            "secret key",
            &secret,
            Box::new(|b| Some(EncryptionSecretKey::from_bytes(b).ok()?.to_bytes().to_vec())),
        ),
        (
            "public key",
            &public,
            Box::new(|b| {
                Some(EncryptionPublicKey::from_bytes(b, &0u32.to_be_bytes()).ok()?.to_bytes())
            }),
        ),
    ];
    for (name, bytes, decode) in cases {
        assert_eq!(decode(bytes).as_deref(), Some(bytes), "{name}");
        for length in (0..bytes.len()).step_by(bytes.len() / 97 + 1).chain([bytes.len() - 1]) {
            assert_eq!(decode(&bytes[..length]), None, "{name} cut to {length}");
        }
        assert_eq!(decode(&[bytes, &[0]].concat()), None, "{name} with a byte more");
        for place in [0, 1] {
            let mut other = bytes.to_vec();
            other[place] ^= 0x40;
            assert_eq!(decode(&other), None, "{name} of another kind or version");
        }
    }
}

#[test]
fn counts_outside_their_bounds_allocate_nothing() {
    let mut bytes = vec![3, 1];
    bytes.extend(129u32.to_be_bytes());
    assert!(matches!(
        Dealing::from_bytes(&bytes),
        Err(DecodeError::OutOfRange { value: 129, max: 128, .. })
    ));
    let mut bytes = vec![3, 1];
    bytes.extend(128u32.to_be_bytes());
    bytes.extend(128u32.to_be_bytes());
    assert!(matches!(Dealing::from_bytes(&bytes), Err(DecodeError::Truncated { .. })));
}

#[test]
fn scalars_and_points_have_one_encoding() {
    let mut rng = rng(1_003);
    let (public, _) = generate_key_pair(b"node", &mut rng);
    let bytes = public.to_bytes();
    // Challenge plus the group order.
    let mut twice = bytes.clone();
    twice[98..130].copy_from_slice(&[0xff; 32]);
    let not_reduced = EncryptionPublicKey::from_bytes(&twice, b"node");
    assert!(matches!(not_reduced, Err(KeyError::Decode(DecodeError::NotAScalar { .. }))));
    // Infinity.
    let mut infinite = bytes.clone();
    infinite[2..50].fill(0);
    infinite[2] = 0xc0;
    let refused = EncryptionPublicKey::from_bytes(&infinite, b"node");
    assert!(matches!(refused, Err(KeyError::Decode(DecodeError::NotAPoint { .. }))));
    // Another sign: another key, whose possession is not proven.
    let mut negated = bytes.clone();
    negated[2] ^= 0x20;
    assert_eq!(EncryptionPublicKey::from_bytes(&negated, b"node"), Err(KeyError::Possession));
    assert_eq!(EncryptionPublicKey::from_bytes(&bytes, b"another node"), Err(KeyError::Possession));
    assert!(EncryptionPublicKey::from_bytes(&bytes, b"node").is_ok());
}

#[test]
fn damage_to_a_stored_key_is_found() {
    let mut rng = rng(1_004);
    let (_, secret) = generate_key_pair(b"node", &mut rng);
    let bytes = secret.to_bytes();
    for place in (2..bytes.len()).step_by(4_999) {
        let mut damaged = bytes.to_vec();
        damaged[place] ^= 1;
        let error = EncryptionSecretKey::from_bytes(&damaged).unwrap_err();
        assert!(matches!(error, KeyError::Decode(DecodeError::Checksum { .. })), "{error}");
    }
}

#[test]
fn secrets_stay_out_of_debug_output() {
    let (_, secret) = generate_key_pair(b"node", &mut rng(1_005));
    assert_eq!(format!("{secret:?}"), "EncryptionSecretKey { epoch: Epoch(0), .. }");
}

#[test]
fn a_session_refuses_what_cannot_be() {
    let mut rng = rng(1_006);
    let nodes = Nodes::new(3, &mut rng);
    let fresh = |dealers, dealings| Source::Fresh { dealers, dealings };
    let session = |threshold, source| {
        nidkg::Session::new([0; 32], Epoch(0), threshold, nodes.public.clone(), source).map(|_| ())
    };
    assert!(session(3, fresh(3, 1)).is_ok());
    for (threshold, source) in
        [(0, fresh(3, 1)), (4, fresh(3, 1)), (2, fresh(3, 0)), (2, fresh(3, 4)), (2, fresh(129, 1))]
    {
        assert!(session(threshold, source).is_err());
    }
    let twice = vec![nodes.public[0], nodes.public[1], nodes.public[0]];
    let error = nidkg::Session::new([0; 32], Epoch(0), 2, twice, fresh(3, 1)).unwrap_err();
    assert_eq!(error, nidkg::SessionError::SameKey(0, 2));
}
