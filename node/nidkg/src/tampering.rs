//! Tests: dealers that cheat. Every field of a dealing is changed by itself; each change must be
//! refused, and by the check that is there for it.
#![allow(clippy::unwrap_used)]

use accounting::Pool;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use zeroize::Zeroizing;

use crate::{
    cipher::chunks_of,
    curve::{G1Affine, G2Affine, Scalar, evaluate},
    dealing::deal_chunks,
    parameters::{CHUNKS, REPETITIONS, response_bound},
    *,
};

const NODES: u32 = 4;
const DEALER: NodeIndex = NodeIndex(2);

struct Stage {
    engine: Engine,
    session: Session,
    keys: Vec<EncryptionSecretKey>,
    rng: ChaCha20Rng,
}

fn stage(seed: u64) -> Stage {
    let mut config = EngineConfig::for_this_machine();
    config.tables = Pool::standalone("tables", 2 << 20);
    let engine = Engine::new(config).unwrap();
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    let (public, keys): (Vec<_>, Vec<_>) =
        (0..NODES).map(|index| generate_key_pair(&index.to_be_bytes(), &mut rng)).unzip();
    let source = Source::Fresh { dealers: NODES, dealings: 2 };
    let session = Session::new([seed as u8; 32], Epoch(3), 3, public, source).unwrap();
    Stage { engine, session, keys, rng }
}

impl Stage {
    fn dealing(&mut self) -> Dealing {
        create_dealing(&self.engine, &self.session, DEALER, None, &mut self.rng).unwrap()
    }

    fn verdict(&mut self, dealing: &Dealing) -> Result<(), Check> {
        let verdict =
            verify_dealing(&self.engine, &self.session, DEALER, dealing.clone(), &mut self.rng);
        verdict.map(|_| ()).map_err(|error| match error {
            DealingError::Rejected { dealer, check } => {
                assert_eq!(dealer, DEALER);
                check
            }
            other => panic!("refused for {other}"),
        })
    }
}

fn moved_g1(point: &mut G1Affine) {
    *point = point.to_point().add_affine(&G1Affine::generator()).to_affine();
}

fn moved_g2(point: &mut G2Affine) {
    *point = point.to_point().add_affine(&G2Affine::generator()).to_affine();
}

fn increment_scalar(scalar: &mut Scalar) {
    *scalar = scalar.add(&Scalar::one());
}

// Promise: P20 - Each changed field of a dealing is refused with the dealer and the check.
#[test]
fn every_field_that_is_changed_is_noticed() {
    type Change = fn(&mut Dealing);
    let changes: &[(&str, Check, Change)] = &[
        ("a coefficient", Check::Chunking, |dealing| moved_g2(&mut dealing.coefficients[1])),
        ("the constant", Check::Chunking, |dealing| moved_g2(&mut dealing.coefficients[0])),
        ("the order of coefficients", Check::Chunking, |dealing| dealing.coefficients.swap(1, 2)),
        ("R", Check::Integrity, |dealing| moved_g1(&mut dealing.ciphertext.r[0])),
        ("the last R", Check::Integrity, |dealing| moved_g1(&mut dealing.ciphertext.r[CHUNKS - 1])),
        ("S", Check::Integrity, |dealing| moved_g1(&mut dealing.ciphertext.s[7])),
        ("Z", Check::Integrity, |dealing| moved_g2(&mut dealing.ciphertext.z[7])),
        ("a chunk", Check::Integrity, |dealing| moved_g1(&mut dealing.ciphertext.rows[3][15])),
        ("two rows", Check::Integrity, |dealing| dealing.ciphertext.rows.swap(0, 1)),
        ("B", Check::Chunking, |dealing| moved_g1(&mut dealing.chunking.masks[0])),
        ("the last B", Check::Chunking, |dealing| {
            moved_g1(&mut dealing.chunking.masks[REPETITIONS - 1])
        }),
        ("C", Check::Chunking, |dealing| moved_g1(&mut dealing.chunking.masked[5])),
        ("D_0", Check::Chunking, |dealing| moved_g1(&mut dealing.chunking.blinders[0])),
        ("D_n", Check::Chunking, |dealing| {
            moved_g1(&mut dealing.chunking.blinders[NODES as usize])
        }),
        ("Y", Check::Chunking, |dealing| moved_g1(&mut dealing.chunking.product)),
        ("a response", Check::Chunking, |dealing| dealing.chunking.responses[31] ^= 1),
        ("a response beyond its range", Check::Chunking, |dealing| {
            dealing.chunking.responses[0] = response_bound(NODES as usize);
        }),
        ("z_r", Check::Chunking, |dealing| increment_scalar(&mut dealing.chunking.randomness[2])),
        ("z_beta", Check::Chunking, |dealing| increment_scalar(&mut dealing.chunking.beta)),
        ("F", Check::Sharing, |dealing| moved_g1(&mut dealing.sharing.randomness_mask)),
        ("A", Check::Sharing, |dealing| moved_g2(&mut dealing.sharing.share_mask)),
        ("Y of sharing", Check::Sharing, |dealing| moved_g1(&mut dealing.sharing.product)),
        ("z_r of sharing", Check::Sharing, |dealing| {
            increment_scalar(&mut dealing.sharing.randomness)
        }),
        ("z_a", Check::Sharing, |dealing| increment_scalar(&mut dealing.sharing.share)),
    ];
    let mut stage = stage(1);
    let good = stage.dealing();
    assert_eq!(stage.verdict(&good), Ok(()));
    for (what, check, change) in changes {
        let mut dealing = good.clone();
        change(&mut dealing);
        assert_eq!(stage.verdict(&dealing), Err(*check), "{what}");
        // The encoding carries the change, and a batch finds it between good ones.
        assert!(Dealing::from_bytes(&dealing.to_bytes()).unwrap() == dealing, "{what}");
        let batch = [good.clone(), dealing, good.clone()].map(|dealing| (DEALER, dealing));
        let results = verify_dealings(&stage.engine, &stage.session, batch.into(), &mut stage.rng);
        assert_eq!(
            results.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, true],
            "{what}"
        );
    }
}

// Promise: P20 - Points outside the group are refused in every field.
#[test]
fn points_outside_the_group_are_noticed_wherever_they_stand() {
    let off_g1 = (0u8..)
        .filter_map(|x| {
            let mut bytes = [0; 48];
            (bytes[0], bytes[47]) = (0x80, x);
            G1Affine::from_compressed_on_curve(&bytes)
        })
        .find(|point| !point.in_group())
        .unwrap();
    let off_g2 = (0u8..)
        .filter_map(|x| {
            let mut bytes = [0; 96];
            (bytes[0], bytes[95]) = (0x80, x);
            G2Affine::from_compressed_on_curve(&bytes)
        })
        .find(|point| !point.in_group())
        .unwrap();
    let mut stage = stage(2);
    let good = stage.dealing();
    let mut refused =
        |dealing: Dealing| assert_eq!(stage.verdict(&dealing), Err(Check::Membership));
    for place in 0..6 {
        let mut dealing = good.clone();
        let point = match place {
            0 => &mut dealing.ciphertext.rows[0][0],
            1 => &mut dealing.ciphertext.rows[3][15],
            2 => &mut dealing.ciphertext.s[3],
            3 => &mut dealing.chunking.masked[1],
            4 => &mut dealing.chunking.product,
            _ => &mut dealing.sharing.product,
        };
        // Moved by a point outside, so that the rest of it still looks right.
        *point = point.to_point().add_affine(&off_g1).to_affine();
        refused(dealing);
    }
    for place in 0..3 {
        let mut dealing = good.clone();
        let point = match place {
            0 => &mut dealing.coefficients[2],
            1 => &mut dealing.ciphertext.z[15],
            _ => &mut dealing.sharing.share_mask,
        };
        *point = point.to_point().add_affine(&off_g2).to_affine();
        refused(dealing);
    }
}

#[test]
fn points_of_order_three_do_not_hide_from_the_check_of_many() {
    // The curve's cofactor is divisible by three: such a point is what a random sum misses most
    // often.
    let third = order_three();
    let mut rng = ChaCha20Rng::seed_from_u64(9);
    let good: Vec<_> = (1..=500)
        .map(|factor| G1Affine::generator().to_point().mul(&Scalar::from_u64(factor)).to_affine())
        .collect();
    assert!(curve::subgroup::all_in_group(&good, &mut rng));
    for place in [0, 1, 191, 192, 499] {
        let mut points = good.clone();
        points[place] = points[place].to_point().add_affine(&third).to_affine();
        assert!(!points[place].in_group());
        assert!(!curve::subgroup::all_in_group(&points, &mut rng), "at {place}");
        // Two that cancel in a plain sum.
        let other = (place + 1) % 500;
        points[other] = points[other].to_point().add_affine(&third.neg()).to_affine();
        assert!(!curve::subgroup::all_in_group(&points, &mut rng), "at {place} and {other}");
    }
}

/// A point of order three: a multiple, by the group order and a third of the cofactor, of some
/// point of the curve.
fn order_three() -> G1Affine {
    let third = (1u8..)
        .filter_map(|x| {
            let mut bytes = [0; 48];
            (bytes[0], bytes[47]) = (0x80, x);
            G1Affine::from_compressed_on_curve(&bytes)
        })
        .map(|point| {
            wide_multiple(&wide_multiple(&point.to_point(), &GROUP_ORDER), &COFACTOR_THIRD)
        })
        .find(|point| !point.is_identity())
        .unwrap();
    assert!(third.double().add(&third).is_identity());
    third.to_affine()
}

fn wide_multiple(point: &curve::G1, factor: &[u64]) -> curve::G1 {
    factor.iter().flat_map(|limb| (0..64).rev().map(move |bit| limb >> bit & 1)).fold(
        curve::G1::identity(),
        |sum, bit| if bit == 1 { sum.double().add(point) } else { sum.double() },
    )
}

/// Order of the prime-order group, as 64-bit limbs, highest first.
const GROUP_ORDER: [u64; 4] =
    [0x73eda753299d7d48, 0x3339d80809a1d805, 0x53bda402fffe5bfe, 0xffffffff00000001];
/// A third of 0x396c8c005555e1568c00aaab0000aaab.
const COFACTOR_THIRD: [u64; 2] = {
    let cofactor = 0x396c8c005555e1568c00aaab0000aaabu128;
    assert!(cofactor.is_multiple_of(3) && !cofactor.is_multiple_of(9));
    [((cofactor / 3) >> 64) as u64, (cofactor / 3) as u64]
};

// Promise: P20 - Chunks beyond their range within the proof's slack are recovered.
#[test]
fn chunks_within_the_slack_are_recovered_and_make_the_same_key() {
    let mut stage = stage(3);
    let polynomial: Vec<_> = (0..3).map(|_| *Scalar::random(&mut stage.rng)).collect();
    let shares: Vec<_> =
        (1..=4).map(|place| evaluate(&polynomial, &Scalar::from_u64(place))).collect();
    let mut chunks: Vec<_> = shares.iter().map(chunks_of).collect();
    // Take from a chunk what its neighbour below gets: the share stays, the chunk is too large by
    // far.
    for row in &mut chunks {
        let place = (1..CHUNKS).find(|place| row[*place] >= 200).unwrap();
        row[place] -= 200;
        row[place - 1] += 200 << 16;
    }
    let chunks = Zeroizing::new(chunks);
    let Stage { engine, session, rng, .. } = &mut stage;
    let cheated =
        deal_chunks(engine, session, DEALER, (&polynomial, &shares), chunks, rng).unwrap();
    assert_eq!(stage.verdict(&cheated), Ok(()), "within the slack");
    let honest =
        create_dealing(&stage.engine, &stage.session, NodeIndex(0), None, &mut stage.rng).unwrap();
    let batch = vec![(NodeIndex(0), honest), (DEALER, cheated)];
    let dealings: Vec<_> = verify_dealings(&stage.engine, &stage.session, batch, &mut stage.rng)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let transcript = create_transcript(&stage.engine, &stage.session, &dealings).unwrap();
    for (index, key) in stage.keys.iter().enumerate() {
        // Loading checks the share against its public key.
        transcript.load(&stage.engine, &stage.session, NodeIndex(index as u32), key).unwrap();
    }
}

#[test]
fn chunks_that_make_another_share_do_not_verify() {
    let mut stage = stage(4);
    let polynomial: Vec<_> = (0..3).map(|_| *Scalar::random(&mut stage.rng)).collect();
    let shares: Vec<_> =
        (1..=4).map(|place| evaluate(&polynomial, &Scalar::from_u64(place))).collect();
    let mut chunks: Vec<_> = shares.iter().map(chunks_of).collect();
    // Small, tied to its context, and wrong: only the proof of sharing detects it.
    chunks[0][4] ^= 1;
    let Stage { engine, session, rng, .. } = &mut stage;
    let wrong =
        deal_chunks(engine, session, DEALER, (&polynomial, &shares), Zeroizing::new(chunks), rng);
    assert_eq!(stage.verdict(&wrong.unwrap()), Err(Check::Sharing));
}

// Promise: P20 - A damaged ciphertext in a transcript is named or gives no share.
#[test]
fn a_damaged_ciphertext_in_a_transcript_is_named_or_makes_no_share() {
    let mut stage = stage(5);
    let batch: Vec<_> = [NodeIndex(0), NodeIndex(1)]
        .map(|dealer| {
            (
                dealer,
                create_dealing(&stage.engine, &stage.session, dealer, None, &mut stage.rng)
                    .unwrap(),
            )
        })
        .into();
    let dealings: Vec<_> = verify_dealings(&stage.engine, &stage.session, batch, &mut stage.rng)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let transcript = create_transcript(&stage.engine, &stage.session, &dealings).unwrap();
    let bytes = transcript.to_bytes();
    // The last byte is in the row of the last receiver of the last dealing: receiver 0 never
    // decodes it, yet notices.
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let damaged = Transcript::from_bytes(&stage.engine, &damaged).unwrap();
    let (received, key) = (stage.session.epoch(), &stage.keys[0]);
    let epoch_key = key.for_epoch(received).unwrap();
    let opener = cipher::Opener::new(&epoch_key);
    let found = damaged.opens_honestly(&stage.engine, &stage.session, NodeIndex(0), &opener);
    assert_eq!(found, [true, false]);
    let whole = Transcript::from_bytes(&stage.engine, &bytes).unwrap();
    let found = whole.opens_honestly(&stage.engine, &stage.session, NodeIndex(0), &opener);
    assert_eq!(found, [true, true]);
}
