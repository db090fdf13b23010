//! The ceremony from its participants' view: the successful run, and every way in which a file can
//! be wrong.

use std::sync::LazyLock;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ed25519_dalek::SigningKey;
use genesis::{
    DEALING_BYTES_MAX, GENESIS_BYTES_MAX, Genesis, NODES_MAX, NodeRecord, PLAN_BYTES_MAX, Plan,
    RECORD_BYTES_MAX, SignedDealing, VerifiedGenesis, check_address, node_id,
};
use nidkg::{combine, generate_key_pair, verify};
use serde_json::{Value, json};

use crate::common::{ENGINE, Node, node, rng};

/// Four nodes in the order of the plan, the plan, their dealings, the genesis.
struct Stage {
    nodes: Vec<Node>,
    plan: Plan,
    dealings: Vec<SignedDealing>,
    genesis: Genesis,
}

static STAGE: LazyLock<Stage> = LazyLock::new(|| {
    let mut nodes: Vec<Node> = (1..=4).map(node).collect();
    nodes.sort_by_key(|node| node.record.node_key().to_bytes());
    let plan =
        Plan::new(nodes.iter().map(|node| node.record.clone()).collect(), 1_700_000_000).unwrap();
    let deal = |node: &Node| SignedDealing::create(&ENGINE, &plan, &node.key, &mut rng(7)).unwrap();
    let dealings: Vec<_> = nodes.iter().map(deal).collect();
    let (genesis, _) =
        Genesis::assemble(&ENGINE, plan.clone(), dealings.clone(), &mut rng(8)).unwrap();
    Stage { nodes, plan, dealings, genesis }
});

fn check(text: &str) -> Result<VerifiedGenesis, genesis::GenesisError> {
    Genesis::from_json(text.as_bytes())?.verify(&ENGINE, &mut rng(9))
}

#[test]
fn four_nodes_make_a_key_that_three_of_them_sign_with() {
    let Stage { nodes, plan, genesis, .. } = &*STAGE;
    assert_eq!((plan.threshold(), plan.dealings_needed()), (3, 2));
    let verified = check(&genesis.to_json()).unwrap();
    assert_eq!(verified.dealers().len(), 4);
    let message = b"a message";
    let shares = nodes.iter().map(|node| {
        let index = plan.index_of(&node.key.verifying_key()).unwrap();
        verified.open_share(&ENGINE, index, &node.encryption).unwrap()
    });
    let signed = shares.skip(1).map(|share| (share.index, share.sign(message))).collect();
    let signature = combine(verified.committee(), &signed).unwrap();
    assert!(verify(&verified.committee().public_key, message, &signature.0));
    assert_eq!(verified.committee().coefficients().unwrap().len(), 3);
}

#[test]
fn files_depend_on_their_inputs_only() {
    let Stage { plan, dealings, genesis, .. } = &*STAGE;
    let backwards = Plan::new(plan.nodes().iter().rev().cloned().collect(), 1_700_000_000).unwrap();
    assert_eq!(backwards.to_json(), plan.to_json());
    assert_eq!(backwards.hash(), plan.hash());
    let later = Plan::new(plan.nodes().to_vec(), 1_700_000_001).unwrap();
    assert_ne!(later.hash(), plan.hash());
    let read = Plan::from_json(plan.to_json().as_bytes()).unwrap();
    assert_eq!((read.to_json(), read.hash()), (plan.to_json(), plan.hash()));

    let shuffled = [2, 0, 3, 1].map(|index: usize| dealings[index].clone()).to_vec();
    let (again, verified) =
        Genesis::assemble(&ENGINE, plan.clone(), shuffled, &mut rng(10)).unwrap();
    assert_eq!(again.to_json(), genesis.to_json());
    let read = check(&again.to_json()).unwrap();
    assert_eq!((read.hash(), read.subnet_id()), (verified.hash(), verified.subnet_id()));

    let dealing = &dealings[0];
    let read = SignedDealing::from_json(dealing.to_json().as_bytes()).unwrap();
    assert_eq!(read.to_json(), dealing.to_json());
    let record = NodeRecord::from_json(plan.nodes()[0].to_json().as_bytes()).unwrap();
    assert_eq!(record.to_json(), plan.nodes()[0].to_json());
}

#[test]
fn dealings_of_one_more_than_may_be_faulty_are_enough_and_others_give_another_key() {
    let Stage { plan, dealings, genesis, .. } = &*STAGE;
    let assemble = |which: &[usize]| {
        let dealings = which.iter().map(|index| dealings[*index].clone()).collect();
        Genesis::assemble(&ENGINE, plan.clone(), dealings, &mut rng(11)).map(|(genesis, _)| genesis)
    };
    let two = assemble(&[3, 1]).unwrap();
    let verified = check(&two.to_json()).unwrap();
    assert_eq!(verified.dealers().iter().map(|dealer| dealer.0).collect::<Vec<_>>(), [1, 3]);
    let of_all = check(&genesis.to_json()).unwrap();
    assert_ne!(verified.subnet_id(), of_all.subnet_id());
    assert_ne!(verified.hash(), of_all.hash());
    for (which, words) in [
        (&[2][..], "1 dealings; 2 are needed"),
        (&[], "0 dealings; 2 are needed"),
        (&[0, 1, 0], "two dealings of node"),
    ] {
        let error = assemble(which).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn one_node_alone_and_the_most_nodes_fit() {
    let lone = node(9);
    let plan = Plan::new(vec![lone.record.clone()], 5).unwrap();
    assert_eq!((plan.threshold(), plan.dealings_needed()), (1, 1));
    let dealing = SignedDealing::create(&ENGINE, &plan, &lone.key, &mut rng(1)).unwrap();
    let (_, verified) = Genesis::assemble(&ENGINE, plan, vec![dealing], &mut rng(2)).unwrap();
    verified.open_share(&ENGINE, nidkg::NodeIndex(0), &lone.encryption).unwrap();

    let most: Vec<Node> = (1..=NODES_MAX as u8).map(node).collect();
    let records: Vec<_> = most.iter().map(|node| node.record.clone()).collect();
    let one_more = [&records[..], &[node(NODES_MAX as u8 + 1).record]].concat();
    let refused = Plan::new(one_more.clone(), 5).err().unwrap().to_string();
    assert!(refused.contains("65 nodes") && refused.contains("1 to 64"), "{refused}");
    let plan = Plan::new(records, 5).unwrap();
    let mut file: Value = serde_json::from_str(&plan.to_json()).unwrap();
    file["nodes"]
        .as_array_mut()
        .unwrap()
        .push(serde_json::from_str(&one_more[64].to_json()).unwrap());
    let refused = Plan::from_json(file.to_string().as_bytes()).err().unwrap().to_string();
    assert!(refused.contains("a list of at most 64"), "{refused}");

    // Sizes of the largest files, with room for longer addresses.
    assert!(plan.to_json().len() * 3 / 2 < PLAN_BYTES_MAX, "{}", plan.to_json().len());
    assert!(most[0].record.to_json().len() * 2 < RECORD_BYTES_MAX);
    let dealing = SignedDealing::create(&ENGINE, &plan, &most[0].key, &mut rng(1)).unwrap();
    let bytes = dealing.to_json().len();
    assert!(bytes * 3 / 2 < DEALING_BYTES_MAX, "{bytes}");
    dealing.check(&plan).unwrap();
    // A ciphertext in a transcript is compressed: less than the dealing it is from.
    assert!(bytes * 2 * NODES_MAX < GENESIS_BYTES_MAX, "{bytes}");
}

/// Flips the lowest bit of a byte in a field of hexadecimal digits or base64.
fn flip(field: &Value, place: usize) -> Value {
    let text = field.as_str().unwrap();
    match hex::decode(text) {
        Ok(mut bytes) => {
            bytes[place] ^= 1;
            json!(hex::encode(bytes))
        }
        Err(_) => {
            let mut bytes = STANDARD.decode(text).unwrap();
            bytes[place] ^= 1;
            json!(STANDARD.encode(bytes))
        }
    }
}

type Change = fn(&mut Value);

#[test]
fn a_record_that_was_changed_is_refused() {
    let record = &STAGE.nodes[0].record;
    let other = serde_json::from_str::<Value>(&STAGE.nodes[1].record.to_json()).unwrap();
    let swapped = move |field: &str| {
        let mut file: Value = serde_json::from_str(&record.to_json()).unwrap();
        file[field] = other[field].clone();
        NodeRecord::from_json(file.to_string().as_bytes()).err().unwrap().to_string()
    };
    assert!(swapped("node_id").contains("the record is for node"));
    assert!(swapped("node_key").contains("its node key is that of node"));
    assert!(swapped("encryption_key").contains("proof of possession"));
    assert!(swapped("address").contains("signature of the record"));
    assert!(swapped("signature").contains("signature of the record"));

    // Another party's key pair, with a proof for this node: only the node's signature shows it.
    let (public, _) = generate_key_pair(record.node_id().as_slice(), &mut rng(99));
    let mut file: Value = serde_json::from_str(&record.to_json()).unwrap();
    file["encryption_key"] = json!(hex::encode(public.to_bytes()));
    let error = NodeRecord::from_json(file.to_string().as_bytes()).err().unwrap().to_string();
    assert!(error.contains("signature of the record"), "{error}");

    // And a proof made for another owner is invalid.
    let stranger = SigningKey::from_bytes(&[77; 32]);
    let error = NodeRecord::new(&stranger, public, "h:1").err().unwrap().to_string();
    assert!(error.contains("proof of possession"), "{error}");

    // A node key of small order.
    let mut file: Value = serde_json::from_str(&record.to_json()).unwrap();
    file["node_key"] = json!(hex::encode([&[1][..], &[0; 31]].concat()));
    let error = NodeRecord::from_json(file.to_string().as_bytes()).err().unwrap().to_string();
    assert!(error.contains("not the public key of an Ed25519"), "{error}");
}

#[test]
fn a_plan_that_was_changed_is_refused() {
    let changes: [(Change, &str); 8] = [
        (|file| file["version"] = json!(2), "version 2"),
        (|file| file["threshold"] = json!(2), "threshold is 2; for 4 nodes it is 3"),
        (|file| file["nodes"].as_array_mut().unwrap().reverse(), "rising node key"),
        (|file| file["nodes"][1] = file["nodes"][0].clone(), "the same node id"),
        (|file| file["nodes"][2]["address"] = json!("10.9.9.9:1"), "signature of the record"),
        (|file| file["nodes"] = json!([]), "0 nodes"),
        (|file| file["genesis_time_seconds"] = json!(u64::MAX), "too far away"),
        (|file| file["more"] = json!(1), "unknown field `more`"),
    ];
    for (change, words) in changes {
        let mut file: Value = serde_json::from_str(&STAGE.plan.to_json()).unwrap();
        change(&mut file);
        let error = Plan::from_json(file.to_string().as_bytes()).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    }
    let key = SigningKey::from_bytes(&[50; 32]);
    let (public, _) = generate_key_pair(node_id(&key.verifying_key()).as_slice(), &mut rng(50));
    let same_address = NodeRecord::new(&key, public, STAGE.nodes[0].record.address()).unwrap();
    let error =
        Plan::new(vec![STAGE.nodes[0].record.clone(), same_address], 1).err().unwrap().to_string();
    assert!(error.contains("the same address"), "{error}");
}

// Promise: P20 - A changed genesis is refused with the changed part.
#[test]
fn a_genesis_that_was_changed_is_refused_and_what_was_changed_is_named() {
    let Stage { plan, genesis, .. } = &*STAGE;
    let names = |index: usize| plan.nodes()[index].node_id().to_text();
    let changes: [(Change, &str, Option<usize>); 12] = [
        (|file| file["version"] = json!(0), "version 0", None),
        (|file| file["plan"]["genesis_time_seconds"] = json!(1), "is for the plan", Some(0)),
        (|file| file["plan"]["nodes"][3]["address"] = json!("h:1"), "record", Some(3)),
        (
            |file| file["dealings"][1]["plan_hash"] = json!("00".repeat(32)),
            "is for the plan",
            Some(1),
        ),
        (
            |file| file["dealings"][2]["signature"] = flip(&file["dealings"][2]["signature"], 3),
            "the signature of the dealing",
            Some(2),
        ),
        (
            |file| file["dealings"][2]["dealing"] = flip(&file["dealings"][2]["dealing"], 5000),
            "the signature of the dealing",
            Some(2),
        ),
        // In another's name, with another's dealing.
        (
            |file| file["dealings"][0]["dealing"] = file["dealings"][1]["dealing"].clone(),
            "the signature of the dealing",
            Some(0),
        ),
        (|file| file["dealings"][1] = file["dealings"][0].clone(), "two dealings", Some(0)),
        (
            |file| file["dealings"].as_array_mut().unwrap().reverse(),
            "order of the plan's nodes",
            None,
        ),
        // One dealing fewer makes another key: the transcript differs.
        (
            |file| drop(file["dealings"].as_array_mut().unwrap().pop()),
            "not the one that the dealings give",
            None,
        ),
        (
            |file| file["transcript"] = flip(&file["transcript"], 100),
            "not the one that the dealings give",
            None,
        ),
        (|file| file["transcript"] = json!(""), "not the one that the dealings give", None),
    ];
    for (change, words, node) in changes {
        let mut file: Value = serde_json::from_str(&genesis.to_json()).unwrap();
        change(&mut file);
        let error = check(&file.to_string()).err().unwrap().to_string();
        assert!(error.contains(words), "{words}: {error}");
        assert!(node.is_none_or(|index| error.contains(&names(index))), "{words}: {error}");
    }
}

#[test]
fn a_dealing_that_is_false_but_signed_is_refused_by_its_check() {
    let Stage { plan, nodes, dealings, .. } = &*STAGE;
    // Node 1 signs the dealing of node 0: the proofs inside are bound to their dealer.
    let mut file: Value = serde_json::from_str(&dealings[0].to_json()).unwrap();
    let dealing = STANDARD.decode(file["dealing"].as_str().unwrap()).unwrap();
    let length = |part: &[u8]| [&(part.len() as u64).to_be_bytes()[..], part].concat();
    let domain = b"thimble-genesis-dealing";
    let message = [
        &[domain.len() as u8][..],
        domain,
        &1_u64.to_be_bytes(),
        &length(plan.hash()),
        &length(&dealing),
    ]
    .concat();
    let signature = ed25519_dalek::Signer::sign(&nodes[1].key, &message);
    file["dealer"] = json!(nodes[1].record.node_id().to_text());
    file["signature"] = json!(hex::encode(signature.to_bytes()));
    let stolen = SignedDealing::from_json(file.to_string().as_bytes()).unwrap();
    stolen.check(plan).unwrap();
    let given = vec![dealings[0].clone(), stolen.clone(), dealings[2].clone()];
    let error =
        Genesis::assemble(&ENGINE, plan.clone(), given, &mut rng(12)).err().unwrap().to_string();
    let name = nodes[1].record.node_id().to_text();
    assert!(error.contains(&name) && error.contains("dealer 1 fails"), "{error}");

    // A node that is not in the plan.
    let stranger = SigningKey::from_bytes(&[66; 32]);
    let error =
        SignedDealing::create(&ENGINE, plan, &stranger, &mut rng(13)).err().unwrap().to_string();
    assert!(error.contains("is not in the plan"), "{error}");
    file["dealer"] = json!(node_id(&stranger.verifying_key()).to_text());
    let foreign = SignedDealing::from_json(file.to_string().as_bytes()).unwrap();
    assert!(foreign.check(plan).unwrap_err().to_string().contains("is not in the plan"));
    file["dealer"] = json!("not a principal");
    assert!(SignedDealing::from_json(file.to_string().as_bytes()).is_err());
}

#[test]
fn a_share_opens_with_its_own_key_only() {
    let Stage { nodes, genesis, .. } = &*STAGE;
    let verified = check(&genesis.to_json()).unwrap();
    let index = verified.plan().index_of(&nodes[0].key.verifying_key()).unwrap();
    assert!(verified.open_share(&ENGINE, index, &nodes[1].encryption).is_err());
    let (_, mut moved) = generate_key_pair(b"", &mut rng(1));
    moved.update_to(nidkg::Epoch(1), &mut rng(1)).unwrap();
    let error = verified.open_share(&ENGINE, index, &moved).err().unwrap().to_string();
    assert!(error.contains("moved on to epoch 1"), "{error}");
}

#[test]
fn addresses_are_checked() {
    for good in ["10.0.0.1:1", "node-1.example.org:65535", "[::1]:4000", "localhost:80"] {
        check_address(good).unwrap();
    }
    let long = format!("{}:1", "a".repeat(260));
    for (bad, words) in [
        ("", "no port"),
        ("host", "no port"),
        (":1", "no host"),
        ("host:0", "between 1 and 65535"),
        ("host:65536", "between 1 and 65535"),
        ("host:+1", "between 1 and 65535"),
        ("host:", "between 1 and 65535"),
        ("::1:80", "characters"),
        ("[::1:80", "characters"),
        ("[host]:80", "brackets"),
        ("a b:80", "characters"),
        ("hôst:80", "characters"),
        (&long, "too long"),
    ] {
        let error = check_address(bad).unwrap_err().to_string();
        assert!(error.contains(words), "{bad}: {error}");
    }
}
