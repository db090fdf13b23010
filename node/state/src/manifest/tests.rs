#![allow(clippy::unwrap_used)]
use pages::{MemoryId, PAGE_BYTES};
use proptest::prelude::*;

use super::*;
use crate::Height;

type Pieces = Vec<Vec<u8>>;

struct PieceBuffer(Pieces);

impl PieceSink for PieceBuffer {
    type Error = ();

    fn piece(&mut self, index: u32, bytes: &[u8]) -> Result<(), ()> {
        assert_eq!(index as usize, self.0.len());
        self.0.push(bytes.to_vec());
        Ok(())
    }
}

/// An object with its length and rows.
type ManifestObject = (ObjectId, u64, Vec<(u32, LeafHash)>);

fn encode(objects: &[ManifestObject], height: u64) -> (Header, Vec<u8>) {
    let (mut body, mut kept) = (BodyEncoder::default(), PieceBuffer(vec![]));
    for (id, length, rows) in objects {
        body.object(&mut kept, id, *length, rows.len() as u32).unwrap();
        for (index, hash) in rows {
            body.leaf(&mut kept, *index, hash).unwrap();
        }
    }
    let header = body.finish(&mut kept, Height(height)).unwrap();
    (header, kept.0.concat())
}

fn decode(body: &[u8]) -> Result<Vec<ManifestObject>, ManifestError> {
    let mut reader = Body::new(body, body.len() as u64);
    let mut objects = vec![];
    while let Some(object) = reader.object()? {
        let mut rows = vec![];
        while let Some(row) = reader.row()? {
            rows.push(row);
        }
        assert_eq!(rows.len(), object.leaves as usize);
        objects.push((object.id, object.length, rows));
    }
    Ok(objects)
}

fn dense(length: u64) -> Vec<(u32, LeafHash)> {
    (0..leaves_of(length)).map(|index| (index as u32, [index as u8; 32])).collect()
}

fn state() -> impl Strategy<Value = Vec<ManifestObject>> {
    let length = 0u64..(5 * LEAF_BYTES as u64);
    let memory = (
        any::<u64>(),
        1u64..2_000,
        prop::collection::btree_map(0u32..40, any::<[u8; 32]>(), 0..20),
    );
    let blob = prop::collection::vec((any::<[u8; 32]>(), length.clone()), 0..4);
    let payload = prop::collection::vec((any::<u64>(), length.clone()), 0..4);
    (length, prop::collection::vec(memory, 0..5), blob, payload).prop_map(
        |(records, memories, blobs, payloads)| {
            let mut objects = vec![(ObjectId::Records, records, dense(records))];
            for (id, pages, rows) in memories {
                let length = pages * PAGE_BYTES;
                let rows =
                    rows.into_iter().filter(|(index, _)| u64::from(*index) < leaves_of(length));
                objects.push((ObjectId::Memory(MemoryId(id)), length, rows.collect()));
            }
            for (hash, length) in blobs {
                objects.push((ObjectId::Blob(hash), length, dense(length)));
            }
            for (number, length) in payloads {
                objects.push((ObjectId::Payload(number), length, dense(length)));
            }
            objects.sort_by_key(|(id, ..)| *id);
            objects.dedup_by_key(|(id, ..)| *id);
            objects
        },
    )
}

fn chunk_id() -> impl Strategy<Value = ChunkId> {
    prop_oneof![
        any::<u32>().prop_map(ChunkId::Manifest),
        any::<u32>().prop_map(|index| ChunkId::Leaf(ObjectId::Records, index)),
        any::<(u64, u32)>()
            .prop_map(|(id, index)| ChunkId::Leaf(ObjectId::Memory(MemoryId(id)), index)),
        any::<([u8; 32], u32)>()
            .prop_map(|(hash, index)| ChunkId::Leaf(ObjectId::Blob(hash), index)),
        (any::<u64>(), any::<u32>())
            .prop_map(|(number, index)| ChunkId::Leaf(ObjectId::Payload(number), index)),
    ]
}

fn leaf() -> impl Strategy<Value = Vec<u8>> {
    (1usize..=64, prop::collection::vec((0usize..64, 0usize..PAGE_BYTES as usize, 1u8..), 0..70))
        .prop_map(|(pages, bytes)| {
            let mut leaf = vec![0; pages * PAGE_BYTES as usize];
            for (page, at, value) in bytes {
                leaf[page % pages * PAGE_BYTES as usize + at] = value;
            }
            leaf
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_body_comes_back(objects in state(), height in any::<u64>()) {
        let (header, body) = encode(&objects, height);
        prop_assert_eq!(decode(&body).unwrap(), objects);
        let bytes = header.to_bytes();
        let back = Header::from_bytes(&bytes).unwrap();
        prop_assert_eq!(&back, &header);
        prop_assert_eq!(root_of(&bytes), header.root());
        for (index, piece) in body.chunks(PIECE_BYTES).enumerate() {
            prop_assert_eq!(back.piece_bytes(index as u32), Some(piece.len()));
            prop_assert_eq!(piece_hash(piece), back.pieces[index]);
        }
        prop_assert_eq!(back.piece_bytes(back.pieces.len() as u32), None);
    }

    #[test]
    fn a_body_has_one_encoding(objects in state(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (_, mut body) = encode(&objects, 1);
        let at = at.index(body.len());
        body[at] ^= 1 << bit;
        // A body that still decodes is another one, and encodes to exactly these bytes.
        if let Ok(other) = decode(&body) {
            prop_assert_ne!(&other, &objects);
            prop_assert_eq!(encode(&other, 1).1, body);
        }
    }

    #[test]
    fn a_body_that_is_cut_is_refused(objects in state(), at in any::<prop::sample::Index>()) {
        let (_, body) = encode(&objects, 1);
        let at = at.index(body.len());
        if let Ok(fewer) = decode(&body[..at]) {
            prop_assert!(fewer.len() < objects.len());
        }
        // The whole length is stated and the bytes end too early.
        let mut reader = Body::new(&body[..at], body.len() as u64);
        let mut result = reader.object();
        while matches!(result, Ok(Some(_))) {
            result = reader.object();
        }
        prop_assert!(result.is_err());
    }

    #[test]
    fn anything_can_be_decoded_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode(&bytes);
        if let Ok(header) = Header::from_bytes(&bytes) {
            prop_assert_eq!(header.to_bytes(), bytes.clone());
        }
        if let Some(id) = ChunkId::from_bytes(&bytes) {
            prop_assert_eq!(id.to_bytes(), bytes.clone());
        }
        let _ = unpack_leaf(&bytes, 64);
    }

    #[test]
    fn the_name_of_a_chunk_comes_back(id in chunk_id()) {
        prop_assert_eq!(ChunkId::from_bytes(&id.to_bytes()), Some(id));
        prop_assert!(id.to_bytes().len() <= 37);
    }

    #[test]
    fn a_leaf_comes_back(leaf in leaf()) {
        let mut encoded = vec![1, 2, 3];
        let pages = (leaf.len() / PAGE_BYTES as usize) as u32;
        let is_zero = leaf.iter().all(|byte| *byte == 0);
        prop_assert_eq!(encode_leaf(&leaf, &mut encoded), !is_zero);
        if is_zero {
            prop_assert!(encoded.is_empty());
        } else {
            let mut back = vec![0; leaf.len()];
            for (page, bytes) in unpack_leaf(&encoded, pages).unwrap() {
                let at = page as usize * PAGE_BYTES as usize;
                back[at..at + bytes.len()].copy_from_slice(bytes);
            }
            prop_assert_eq!(back, leaf);
            prop_assert!(encoded.len() <= CHUNK_BYTES_MAX);
            // A page that the memory does not have.
            let last = 64 - u64::from_be_bytes(encoded[..8].try_into().unwrap()).leading_zeros();
            prop_assert_eq!(unpack_leaf(&encoded, last - 1), Err(LeafError::PastEnd));
        }
    }
}

#[test]
fn a_leaf_has_one_encoding() {
    let mut encoded = vec![];
    let mut leaf = vec![0; LEAF_BYTES];
    leaf[5 * PAGE_BYTES as usize] = 1;
    assert!(encode_leaf(&leaf, &mut encoded));
    assert_eq!(encoded.len(), 8 + PAGE_BYTES as usize);
    assert_eq!(
        unpack_leaf(&encoded[..encoded.len() - 1], 64),
        Err(LeafError::Length { found: 4103, expected: 4104 })
    );
    assert_eq!(unpack_leaf(&encoded[..7], 64), Err(LeafError::CutOff(7)));
    assert_eq!(unpack_leaf(&[0; 8], 64), Err(LeafError::Zero));
    let mut named_for_nothing = encoded.clone();
    named_for_nothing[8] = 0;
    assert_eq!(unpack_leaf(&named_for_nothing, 64), Err(LeafError::Zero));
}

#[test]
fn headers_that_cannot_be_are_refused() {
    let header = Header {
        height: Height(7),
        body_bytes: PIECE_BYTES as u64 + 1,
        pieces: vec![[1; 32], [2; 32]],
    };
    let bytes = header.to_bytes();
    assert!(matches!(Header::from_bytes(&bytes[..16]), Err(ManifestError::CutOff)));
    assert!(matches!(
        Header::from_bytes(&bytes[..bytes.len() - 32]),
        Err(ManifestError::Pieces { .. })
    ));
    assert!(matches!(
        Header::from_bytes(&bytes[..bytes.len() - 1]),
        Err(ManifestError::Pieces { .. })
    ));
    let mut other = bytes.clone();
    other[0] = VERSION + 1;
    assert!(matches!(Header::from_bytes(&other), Err(ManifestError::Version { .. })));
    let mut endless = bytes;
    endless[9..17].copy_from_slice(&u64::MAX.to_be_bytes());
    assert!(matches!(Header::from_bytes(&endless), Err(ManifestError::TooLong { .. })));
}

#[test]
fn bodies_that_cannot_be_are_refused() {
    let good = vec![
        (ObjectId::Records, 10, dense(10)),
        (ObjectId::Memory(MemoryId(1)), 4 * LEAF_BYTES as u64, vec![(0, [1; 32]), (3, [2; 32])]),
        (ObjectId::Memory(MemoryId(2)), PAGE_BYTES, vec![]),
    ];
    let refused = |change: &dyn Fn(&mut Vec<ManifestObject>)| {
        let mut objects = good.clone();
        change(&mut objects);
        decode(&encode(&objects, 1).1).unwrap_err()
    };
    assert!(matches!(refused(&|objects| objects.swap(1, 2)), ManifestError::Order));
    assert!(matches!(refused(&|objects| objects[2].0 = objects[1].0), ManifestError::Order));
    assert!(matches!(refused(&|objects| drop(objects.remove(0))), ManifestError::Order));
    assert!(matches!(refused(&|objects| objects.clear()), ManifestError::CutOff));
    assert!(matches!(refused(&|objects| objects[1].1 += 1), ManifestError::Length { .. }));
    assert!(matches!(refused(&|objects| objects[1].1 = PAGE_BYTES), ManifestError::Rows));
    assert!(matches!(refused(&|objects| objects[1].2.swap(0, 1)), ManifestError::Rows));
    assert!(matches!(refused(&|objects| objects[1].2[1].0 = 4), ManifestError::Rows));
    assert!(matches!(refused(&|objects| objects[0].2.clear()), ManifestError::Rows));
    let mut unknown = encode(&good, 1).1;
    unknown[0] = 9;
    assert!(matches!(decode(&unknown), Err(ManifestError::Kind(9))));
}

/// The encoding is agreed on by a subnet: it changes with `VERSION` or not at all.
#[test]
fn the_root_of_a_known_state_is_what_it_was() {
    let objects = vec![
        (ObjectId::Records, 300_000, dense(300_000)),
        (ObjectId::Memory(MemoryId(3)), 1 << 20, vec![(1, [7; 32])]),
        (ObjectId::Blob([9; 32]), 5, dense(5)),
        (ObjectId::Payload(4), 300_000, dense(300_000)),
    ];
    let (header, body) = encode(&objects, 42);
    assert_eq!(body.len(), 13 + 2 * 36 + 21 + 36 + 45 + 36 + 21 + 2 * 36);
    let root: String = header.root().iter().map(|byte| format!("{byte:02x}")).collect();
    let pinned = (7, "942318dd3447d3be2ebd4c046a554963b5a9a4fc1d0b4741f9566bfa676a82d7");
    testing::formats::check_hash("the root of a manifest", VERSION.into(), &root, pinned);
}

fn pace() -> ManifestPace {
    ManifestPace { rounds: 10, delta_bytes: 1_000, instructions: 100, lag_rounds: 3 }
}

/// Runs the clock and returns the heights that were given a manifest and those at which a root
/// entered, with whose root it was.
fn run(costs: &[RoundCost]) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut clock, mut made, mut entered) = (ManifestClock::default(), vec![], vec![]);
    for (height, cost) in (1u64..).zip(costs) {
        // Stored and loaded between any two rounds.
        let stored = postcard::to_stdvec(&clock).unwrap();
        clock = postcard::from_bytes(&stored).unwrap();
        if let Some(entering) = clock.count(Height(height), *cost, &pace()) {
            assert_eq!(clock.pending(), Some(entering.0));
            clock.enter(entering, [entering.0.0 as u8; 32]);
            entered.push((height, entering.0.0));
        }
        if clock.close(Height(height), &pace()) {
            assert_eq!(clock.pending(), Some(Height(height)));
            made.push(height);
        }
    }
    (made, entered)
}

const IDLE: RoundCost = RoundCost { delta_bytes: 0, instructions: 0 };

#[test]
fn a_manifest_comes_with_rounds_and_its_root_a_lag_later() {
    let (made, entered) = run(&[IDLE; 35]);
    assert_eq!(made, [10, 20, 30]);
    assert_eq!(entered, [(13, 10), (23, 20), (33, 30)]);
}

#[test]
fn delta_or_instructions_bring_a_manifest_early_and_the_root_before_it_too() {
    let mut costs = vec![IDLE; 30];
    costs[10].delta_bytes = 1_000;
    costs[14].instructions = 60;
    costs[15].instructions = 60;
    let (made, entered) = run(&costs);
    assert_eq!(made, [10, 11, 16, 26]);
    assert_eq!(entered, [(11, 10), (14, 11), (19, 16), (29, 26)]);
}

#[test]
fn every_round_may_have_a_manifest() {
    let (made, entered) = run(&[RoundCost { delta_bytes: 5_000, instructions: 0 }; 5]);
    assert_eq!(made, [1, 2, 3, 4, 5]);
    assert_eq!(entered, [(2, 1), (3, 2), (4, 3), (5, 4)]);
}
