//! The files that a ceremony's nodes send each other (records, plans, dealings, a genesis), changed
//! anywhere: reading and checking return, and an accepted file is the one that was written.
//!
//! The first byte chooses the file. The rest is a list of changes, four bytes each: a place in the
//! text (three bytes) and the new byte there. Even choices take the bytes as they are.

use std::sync::LazyLock;

use ed25519_dalek::SigningKey;
use genesis::{Genesis, NodeRecord, Plan, SignedDealing, node_id};
use nidkg::{Engine, EngineConfig, generate_key_pair};
use rand::{SeedableRng, rngs::StdRng};

struct Ceremony {
    engine: Engine,
    record: String,
    plan: Plan,
    dealing: String,
    genesis: String,
}

static CEREMONY: LazyLock<Ceremony> = LazyLock::new(|| {
    let engine = Engine::new(EngineConfig::for_this_machine()).expect("threads can be started");
    let mut rng = StdRng::seed_from_u64(1);
    let key = SigningKey::from_bytes(&[1; 32]);
    let owner = node_id(&key.verifying_key());
    let (encryption, _) = generate_key_pair(owner.as_slice(), &mut rng);
    let record = NodeRecord::new(&key, encryption, "127.0.0.1:9000").expect("a record");
    let plan = Plan::new(vec![record.clone()], 1_700_000_000).expect("a plan of one");
    let dealing = SignedDealing::create(&engine, &plan, &key, &mut rng).expect("a dealing");
    let (genesis, _) = Genesis::assemble(&engine, plan.clone(), vec![dealing.clone()], &mut rng)
        .expect("a genesis");
    Ceremony {
        engine,
        record: record.to_json(),
        plan,
        dealing: dealing.to_json(),
        genesis: genesis.to_json(),
    }
});

/// The text with the changes in it.
fn changed(text: &str, changes: &[u8]) -> Vec<u8> {
    let mut text = text.as_bytes().to_vec();
    for change in changes.chunks_exact(4).take(64) {
        let place = u32::from_be_bytes([0, change[0], change[1], change[2]]) as usize % text.len();
        text[place] = change[3];
    }
    text
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let Ceremony { engine, record, plan, dealing, genesis } = &*CEREMONY;
    let plan_text = plan.to_json();
    let texts = [record, &plan_text, dealing, genesis];
    let original = texts[usize::from(choice / 2 % 4)];
    let text = if choice % 2 == 0 { bytes.to_vec() } else { changed(original, bytes) };
    let mut rng = StdRng::seed_from_u64(2);
    match choice / 2 % 4 {
        0 => {
            // Signed by its node: nothing but the record itself is accepted, unless it is another
            // node's.
            let Ok(read) = NodeRecord::from_json(&text) else { return };
            let again = read.to_json();
            assert!(NodeRecord::from_json(again.as_bytes()).is_ok_and(|record| record == read));
            assert!(choice % 2 == 0 || again == *record);
        }
        1 => {
            let Ok(read) = Plan::from_json(&text) else { return };
            let again =
                Plan::from_json(read.to_json().as_bytes()).expect("what was written is read");
            assert_eq!(again.hash(), read.hash());
        }
        2 => {
            let Ok(read) = SignedDealing::from_json(&text) else { return };
            let checked = read.check(plan).is_ok();
            assert!(!checked || read.to_json() == *dealing, "signed, and not the dealing");
        }
        _ => {
            let Ok(read) = Genesis::from_json(&text) else { return };
            let again = read.to_json();
            if read.verify(engine, &mut rng).is_ok() {
                assert!(
                    Genesis::from_json(again.as_bytes()).is_ok_and(|read| read.to_json() == again)
                );
                assert!(choice % 2 == 0 || again == *genesis, "verified, and not the genesis");
            }
        }
    }
}
