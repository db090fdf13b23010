//! Key generations of every small shape.

use nidkg::{Epoch, Source, create_transcript};
use proptest::prelude::*;

use crate::support::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Whatever the sizes, thresholds and epochs: the shares sign for the key, and resharing to
    /// anybody keeps it.
    #[test]
    fn a_key_is_made_used_and_moved(
        seed in any::<u64>(),
        (nodes, threshold) in (1u32..=5).prop_flat_map(|nodes| (Just(nodes), 1..=nodes)),
        (others, other_threshold) in (1u32..=5).prop_flat_map(|nodes| (Just(nodes), 1..=nodes)),
        epochs in prop::collection::vec(any::<u32>(), 2),
    ) {
        let (engine, mut rng) = (engine(), rng(seed));
        let mut first = Nodes::new(nodes, &mut rng);
        let source = Source::Fresh { dealers: nodes, dealings: nodes.div_ceil(3) };
        let session = first.session(1, epochs[0], threshold, source);
        for key in &mut first.secret {
            key.update_to(Epoch(epochs[0] / 2), &mut rng).unwrap();
            key.update_to(Epoch(epochs[0]), &mut rng).unwrap();
        }
        let (transcript, shares) = generate(&engine, &first, &session, &mut rng);
        sign_and_verify(transcript.committee(), &shares);

        let second = Nodes::new(others, &mut rng);
        let source = Source::Reshare(transcript.committee().clone());
        let session = second.session(2, epochs[1], other_threshold, source);
        let dealings = reshare(&engine, &session, &shares, &mut rng);
        let dealings = verified(&engine, &session, dealings, &mut rng);
        let moved = create_transcript(&engine, &session, &dealings).unwrap();
        prop_assert_eq!(moved.committee().public_key, transcript.committee().public_key);
        sign_and_verify(moved.committee(), &second.load(&engine, &session, &moved));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// However a key gets to an epoch, it opens that epoch and later ones, refuses earlier ones,
    /// belongs to its public key, and survives storage.
    #[test]
    fn a_key_moves_forward_only(seed in any::<u64>(), mut steps in prop::collection::vec(any::<u32>(), 1..5)) {
        let mut rng = rng(seed);
        let (public, mut secret) = nidkg::generate_key_pair(b"node", &mut rng);
        steps.sort_unstable();
        for step in &steps {
            secret.update_to(Epoch(*step), &mut rng).unwrap();
            prop_assert_eq!(secret.epoch(), Epoch(*step));
            secret.check(&public).unwrap();
            secret = nidkg::EncryptionSecretKey::from_bytes(&secret.to_bytes()).unwrap();
        }
        let last = *steps.last().unwrap();
        if last > 0 {
            prop_assert!(secret.update_to(Epoch(last - 1), &mut rng).is_err());
        }
    }
}
