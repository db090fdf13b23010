//! A dealing of one dealer to one receiver, changed anywhere: decoding and verification return, and
//! nothing but the dealing itself verifies.
//!
//! The input is a list of changes, three bytes each: a place in the encoding (two bytes) and what
//! is added to the byte there.

use std::sync::LazyLock;

use nidkg::{
    Dealing, Engine, EngineConfig, Epoch, NodeIndex, Session, Source, create_dealing,
    generate_key_pair, verify_dealing,
};
use rand::{SeedableRng, rngs::StdRng};

struct Stage {
    engine: Engine,
    session: Session,
    dealing: Vec<u8>,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let engine = Engine::new(EngineConfig::for_this_machine()).expect("threads can be started");
    let mut rng = StdRng::seed_from_u64(1);
    let (public, _) = generate_key_pair(b"node", &mut rng);
    let source = Source::Fresh { dealers: 1, dealings: 1 };
    let session =
        Session::new([1; 32], Epoch(1), 1, vec![public], source).expect("one of one is a session");
    let dealing =
        create_dealing(&engine, &session, NodeIndex(0), None, &mut rng).expect("a dealer may deal");
    Stage { engine, session, dealing: dealing.to_bytes() }
});

pub(crate) fn test_one_input(changes: &[u8]) {
    let Stage { engine, session, dealing } = &*STAGE;
    let mut changed = dealing.clone();
    for change in changes.chunks_exact(3).take(64) {
        let place = usize::from(u16::from_be_bytes([change[0], change[1]])) % changed.len();
        changed[place] = changed[place].wrapping_add(change[2]);
    }
    let Ok(decoded) = Dealing::from_bytes(&changed) else { return };
    let mut rng = StdRng::seed_from_u64(2);
    let verified = verify_dealing(engine, session, NodeIndex(0), decoded, &mut rng).is_ok();
    assert_eq!(verified, changed == *dealing);
}
