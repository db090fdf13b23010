//! Whole key generations.

use nidkg::{
    Check, DealingError, Epoch, KeyError, NodeIndex, Source, TranscriptError, create_dealing,
    create_transcript, create_transcript_from_all, verify_dealings,
};

use crate::support::*;

#[test]
fn four_nodes_make_a_key_that_none_of_them_knows() {
    let (engine, mut rng) = (engine(), rng(1));
    let nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(1, 0);
    let (transcript, shares) = generate(&engine, &nodes, &session, &mut rng);
    assert_eq!(transcript.dealers().collect::<Vec<_>>(), [NodeIndex(0), NodeIndex(1)]);
    sign_and_verify(transcript.committee(), &shares);
}

#[test]
fn one_node_makes_a_key_by_the_same_path() {
    let (engine, mut rng) = (engine(), rng(2));
    let nodes = Nodes::new(1, &mut rng);
    let session = nodes.fresh(1, 9);
    let (transcript, shares) = generate(&engine, &nodes, &session, &mut rng);
    sign_and_verify(transcript.committee(), &shares);
}

// Promise: P20 - 40 nodes make a key and reshare it to 13 others, public key unchanged.
#[test]
fn forty_nodes_make_a_key_and_hand_it_to_thirteen_others() {
    let (engine, mut rng) = (engine(), rng(3));
    let nodes = Nodes::new(40, &mut rng);
    let session = nodes.fresh(1, 5);
    let (transcript, shares) = generate(&engine, &nodes, &session, &mut rng);
    assert_eq!((shares.len(), transcript.committee().threshold), (40, 27));
    sign_and_verify(transcript.committee(), &shares);

    let others = Nodes::new(13, &mut rng);
    let source = Source::Reshare(transcript.committee().clone());
    let session = others.session(2, 0, high_threshold(13), source);
    let dealings = reshare(&engine, &session, &shares[13..], &mut rng);
    let dealings = verified(&engine, &session, dealings, &mut rng);
    let moved = create_transcript(&engine, &session, &dealings).unwrap();
    assert_eq!(moved.committee().public_key, transcript.committee().public_key);
    assert_eq!((moved.committee().threshold, moved.committee().shares.len()), (9, 13));
    sign_and_verify(moved.committee(), &others.load(&engine, &session, &moved));
}

#[test]
fn a_transcript_of_all_dealings_holds_more_of_them() {
    let (engine, mut rng) = (engine(), rng(4));
    let nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(1, 0);
    let dealings = deal(&engine, &session, 4, &mut rng);
    let dealings = verified(&engine, &session, dealings, &mut rng);
    let all = create_transcript_from_all(&engine, &session, &dealings).unwrap();
    assert_eq!(all.dealers().count(), 4);
    sign_and_verify(all.committee(), &nodes.load(&engine, &session, &all));
    let few = create_transcript(&engine, &session, &dealings).unwrap();
    assert_ne!(few.committee().public_key, all.committee().public_key);
}

#[test]
fn too_few_or_repeated_dealings_make_no_transcript() {
    let (engine, mut rng) = (engine(), rng(5));
    let nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(1, 0);
    let dealings = deal(&engine, &session, 2, &mut rng);
    let dealings = verified(&engine, &session, dealings, &mut rng);
    assert!(matches!(
        create_transcript(&engine, &session, &dealings[..1]),
        Err(TranscriptError::TooFewDealings { have: 1, need: 2 })
    ));
    let twice = [dealings[1].clone(), dealings[1].clone()];
    assert!(matches!(
        create_transcript(&engine, &session, &twice),
        Err(TranscriptError::TwiceDealt(NodeIndex(1)))
    ));
    let other = nodes.fresh(2, 0);
    assert!(matches!(
        create_transcript(&engine, &other, &dealings),
        Err(TranscriptError::OtherSession(_))
    ));
}

#[test]
fn a_batch_names_every_bad_dealer_and_keeps_the_good_ones() {
    let (engine, mut rng) = (engine(), rng(6));
    let nodes = Nodes::new(7, &mut rng);
    let session = nodes.fresh(1, 0);
    let mut dealings = deal(&engine, &session, 7, &mut rng);
    // A dealing moved to another dealer, one to another session, one from another committee.
    dealings[1].1 = dealings[0].1.clone();
    let other = nodes.fresh(2, 0);
    dealings[4].1 = create_dealing(&engine, &other, NodeIndex(4), None, &mut rng).unwrap();
    let smaller = Nodes::new(4, &mut rng).fresh(1, 0);
    dealings[5].1 = create_dealing(&engine, &smaller, NodeIndex(3), None, &mut rng).unwrap();
    dealings.push((NodeIndex(7), dealings[0].1.clone()));

    let results = verify_dealings(&engine, &session, dealings, &mut rng);
    let error = |index: usize| results[index].as_ref().err().cloned();
    let moved =
        |index| DealingError::Rejected { dealer: NodeIndex(index), check: Check::Integrity };
    for good in [0, 2, 3, 6] {
        assert_eq!(error(good), None);
    }
    assert_eq!(error(1), Some(moved(1)));
    assert_eq!(error(4), Some(moved(4)));
    assert!(matches!(error(5), Some(DealingError::Shape { dealer: NodeIndex(5), need: 5, .. })));
    assert_eq!(error(7), Some(DealingError::UnknownDealer { dealer: NodeIndex(7), dealers: 7 }));
    assert_eq!(moved(1).to_string(), "the dealing of dealer 1 fails integrity of the ciphertext");
}

#[test]
fn a_reshared_value_that_is_not_the_dealers_share_is_refused() {
    let (engine, mut rng) = (engine(), rng(7));
    let nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(1, 0);
    let (transcript, mut shares) = generate(&engine, &nodes, &session, &mut rng);
    let session = nodes.session(2, 0, 3, Source::Reshare(transcript.committee().clone()));
    shares[2] = nidkg::SecretShare::from_bytes(NodeIndex(2), &shares[1].to_bytes()).unwrap();
    let dealings = reshare(&engine, &session, &shares, &mut rng);
    let results = verify_dealings(&engine, &session, dealings, &mut rng);
    assert!(results.iter().enumerate().all(|(index, result)| result.is_ok() == (index != 2)));
    let expected = DealingError::Rejected { dealer: NodeIndex(2), check: Check::OldShare };
    assert_eq!(results[2].as_ref().err(), Some(&expected));
    // Three of four old shares are enough.
    let good: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
    let moved = create_transcript(&engine, &session, &good).unwrap();
    sign_and_verify(moved.committee(), &nodes.load(&engine, &session, &moved));
    assert!(matches!(
        create_dealing(&engine, &session, NodeIndex(0), None, &mut rng),
        Err(DealingError::WrongSource)
    ));
}

// Promise: P20 - An updated encryption key opens no earlier epoch.
#[test]
fn after_an_update_earlier_ciphertexts_cannot_be_opened_from_what_is_stored() {
    let (engine, mut rng) = (engine(), rng(8));
    let mut nodes = Nodes::new(4, &mut rng);
    let sessions: Vec<_> = [6, 7, 8, 1 << 31].map(|epoch| nodes.fresh(epoch as u8, epoch)).into();
    let transcripts: Vec<_> =
        sessions.iter().map(|session| generate(&engine, &nodes, session, &mut rng).0).collect();

    let key = &mut nodes.secret[2];
    key.update_to(Epoch(7), &mut rng).unwrap();
    let stored = nidkg::EncryptionSecretKey::from_bytes(&key.to_bytes()).unwrap();
    stored.check(&nodes.public[2]).unwrap();
    let load =
        |index: usize| transcripts[index].load(&engine, &sessions[index], NodeIndex(2), &stored);
    let past = KeyError::Past { asked: 6, current: 7 };
    assert_eq!(load(0).unwrap_err(), TranscriptError::Key(past.clone()));
    for later in [1, 2, 3] {
        load(later).unwrap();
    }

    // The refusal is not a matter of a number in a header: with the epoch overwritten the cover no
    // longer fits, and a cover that is made to fit opens nothing.
    let mut bytes = stored.to_bytes();
    bytes[2..6].copy_from_slice(&6u32.to_be_bytes());
    reseal(&mut bytes);
    assert_eq!(nidkg::EncryptionSecretKey::from_bytes(&bytes).unwrap_err(), KeyError::Mismatch);
    // The first node of epoch 7 is its leaf: relabel it as the leaf of epoch 6, and give the key
    // that leaf of 7 once more after it.
    let leaf = 10..10 + 8 + 96 + 3 * 192;
    let mut forged = bytes[..leaf.start].to_vec();
    let count = u32::from_be_bytes(bytes[6..10].try_into().unwrap());
    forged[6..10].copy_from_slice(&(count + 1).to_be_bytes());
    let mut earlier = bytes[leaf.clone()].to_vec();
    earlier[4..8].copy_from_slice(&6u32.to_be_bytes());
    forged.extend(earlier);
    forged.extend(&bytes[leaf.start..]);
    reseal(&mut forged);
    let forged = nidkg::EncryptionSecretKey::from_bytes(&forged).unwrap();
    assert_eq!(forged.check(&nodes.public[2]).unwrap_err(), KeyError::Mismatch);
    assert_eq!(nodes.secret[2].update_to(Epoch(6), &mut rng).unwrap_err(), past);
}

fn reseal(bytes: &mut [u8]) {
    use sha2::Digest;
    let body = bytes.len() - 32;
    let sum = sha2::Sha256::digest(&bytes[..body]);
    bytes[body..].copy_from_slice(&sum);
}

#[test]
fn a_damaged_transcript_opens_nothing() {
    let (engine, mut rng) = (engine(), rng(9));
    let nodes = Nodes::new(4, &mut rng);
    let session = nodes.fresh(1, 0);
    let (transcript, _) = generate(&engine, &nodes, &session, &mut rng);
    let other = nodes.fresh(2, 0);
    assert!(matches!(
        transcript.load(&engine, &other, NodeIndex(0), &nodes.secret[0]),
        Err(TranscriptError::OtherSession(_))
    ));
    assert!(matches!(
        transcript.load(&engine, &session, NodeIndex(4), &nodes.secret[0]),
        Err(TranscriptError::UnknownReceiver { .. })
    ));
}
