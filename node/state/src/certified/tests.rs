#![allow(clippy::unwrap_used)]
use ic_certification::{Certificate, HashTree, LookupResult, empty, fork, labeled, leaf, pruned};
use ic_verify_bls_signature::{PrivateKey, verify_bls_signature};
use pages::MemoryId;
use proptest::prelude::*;

use super::*;
use crate::{
    CanisterState, ErrorCode, ExecutionState, HistoryLimits, Hooks, Ingress, InstalledModule,
    Memory, ModuleHash, ModuleInfo, Reject, RejectCode, Settings, StateArc, SubnetKey,
};

fn canister_id(number: u64) -> CanisterId {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend([1, 1]);
    Principal::from_slice(&bytes)
}

fn request_id(number: u64) -> RequestId {
    RequestId(crate::tree::leaf_digest(&number.to_le_bytes()))
}

fn section(public: bool, name: &str, content: &[u8]) -> CustomSection {
    CustomSection { public, name: name.into(), content: content.into() }
}

fn subnet() -> SubnetInfo {
    SubnetInfo {
        subnet_id: Principal::self_authenticating([7; 133]),
        public_key_der: vec![7; 133],
        subnet_type: SubnetType::Application,
        canister_ranges: (0..7)
            .map(|range| (canister_id(range * 100), canister_id(range * 100 + 99)))
            .rev()
            .collect(),
        nodes: [9, 3]
            .map(|node| NodeInfo {
                node_id: Principal::self_authenticating([node; 44]),
                public_key_der: vec![node; 44],
            })
            .into(),
    }
}

fn execution(custom_sections: Vec<CustomSection>) -> ExecutionState {
    let info = ModuleInfo {
        updates: vec![],
        queries: vec![],
        composite_queries: vec![],
        hooks: Hooks::default(),
        memory64: false,
        heap_initial_wasm_pages: 0,
        heap_maximum_wasm_pages: None,
        custom_sections,
        enhanced_orthogonal_persistence: false,
        globals: vec![],
        compile_instructions: 0,
    };
    let memory = |number| Memory { id: MemoryId(number), wasm_pages: 0, layout: None };
    ExecutionState {
        module: StateArc::new(InstalledModule::new(ModuleHash([5; 32]), 0, info)),
        globals: vec![],
        heap: memory(1),
        stable: memory(2),
    }
}

struct Fixture {
    canisters: CanisterMap,
    history: IngressHistory,
}

fn fixture() -> Fixture {
    let sections =
        vec![section(true, "candid:service", b"service : {}"), section(false, "secret", b"hidden")];
    let canister = |number, controllers| {
        let settings = Settings::default();
        CanisterState::new(canister_id(number), controllers, settings, 0, Time(1_000))
    };
    let mut canisters: CanisterMap = (0..50_u64)
        .map(|number| {
            let controllers = vec![Principal::anonymous(), canister_id(3)];
            let certified_data = number.to_le_bytes().to_vec();
            Arc::new(CanisterState { certified_data, ..canister(number, controllers) })
        })
        .collect();
    canisters.insert(Arc::new(CanisterState {
        execution: Some(execution(sections)),
        installed_at: Some(Time(300)),
        ..canister(10, vec![])
    }));
    let mut history =
        IngressHistory::new(HistoryLimits { bytes_max: 1 << 20, unfinished_max: 100 });
    for number in 0..40 {
        let ingress = Ingress {
            request_id: request_id(number),
            sender: Principal::anonymous(),
            canister_id: canister_id(number),
            effective_canister_id: canister_id(number),
            method_name: "go".into(),
            arg: vec![],
            ingress_expiry: Time(200_000_000_000),
            sender_info: None,
        };
        history.receive(&ingress, Time(1)).unwrap();
    }
    history.processing(&request_id(1));
    history.processing(&request_id(2));
    history.finish(&request_id(2), Ok(b"answer".to_vec()), Time(2));
    let reject = Reject {
        code: RejectCode::CanisterError,
        message: "no".into(),
        error_code: ErrorCode(503),
    };
    history.finish(&request_id(3), Err(reject), Time(2));
    Fixture { canisters, history }
}

fn key_of_subnet() -> PrivateKey {
    let mut scalar = [0; 32];
    scalar[31] = 42;
    PrivateKey::deserialize(&scalar).unwrap()
}

fn certified(fixture: &mut Fixture) -> CertifiedState {
    certified_with(fixture, None)
}

fn certified_with(fixture: &mut Fixture, manifest: Option<(Height, [u8; 32])>) -> CertifiedState {
    let state = UncertifiedState::new(
        Height(4),
        Time(1_700_000_000_123_456_789),
        Arc::new(SubnetTree::new(subnet())),
        SubnetMetrics {
            num_canisters: 50,
            consumed_cycles_total: (3 << 64) + 5,
            ..SubnetMetrics::default()
        },
        &mut fixture.canisters,
        &mut fixture.history,
        manifest,
    );
    let signature = key_of_subnet().sign(&signed_message(&state.root())).serialize().to_vec();
    state.certify(signature)
}

fn signed_message(root: &Digest) -> Vec<u8> {
    [b"\x0dic-state-root".as_slice(), root].concat()
}

/// As a client does: decode, hash, check the signature.
fn verified(bytes: &[u8]) -> HashTree {
    assert_eq!(&bytes[..3], [0xd9, 0xd9, 0xf7], "self-described");
    let certificate: Certificate = serde_cbor_2::from_slice(bytes).unwrap();
    assert!(certificate.delegation.is_none());
    let message = signed_message(&certificate.tree.digest());
    verify_bls_signature(
        &certificate.signature,
        &message,
        &key_of_subnet().public_key().serialize(),
    )
    .unwrap();
    certificate.tree
}

fn path(labels: &[&[u8]]) -> Vec<Vec<u8>> {
    labels.iter().map(|label| label.to_vec()).collect()
}

/// The value at a path that was asked for alone.
fn read(state: &CertifiedState, labels: &[&[u8]]) -> Option<Vec<u8>> {
    let path = path(labels);
    let tree = verified(&state.certificate(std::slice::from_ref(&path)));
    assert!(
        matches!(tree.lookup_path([b"time"]), LookupResult::Found(_)),
        "the time is always there"
    );
    match tree.lookup_path(path.iter()) {
        LookupResult::Found(value) => Some(value.to_vec()),
        LookupResult::Absent => None,
        other => panic!("{path:?}: {other:?}"),
    }
}

#[test]
fn every_path_of_the_specification_reads_as_it_says() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    let subnet = subnet();
    let subnet_id = subnet.subnet_id.as_slice();

    let time = read(&state, &[b"time"]).unwrap();
    assert_eq!(leb128::read::unsigned(&mut time.as_slice()).unwrap(), 1_700_000_000_123_456_789);
    assert_eq!(read(&state, &[b"subnet", subnet_id, b"public_key"]), Some(vec![7; 133]));
    assert_eq!(read(&state, &[b"subnet", subnet_id, b"type"]), Some(b"application".to_vec()));
    for node in subnet.nodes {
        let found =
            read(&state, &[b"subnet", subnet_id, b"node", node.node_id.as_slice(), b"public_key"]);
        assert_eq!(found, Some(node.public_key_der));
    }
    let metrics = read(&state, &[b"subnet", subnet_id, b"metrics"]).unwrap();
    let metrics: ic_transport_types::SubnetMetrics = serde_cbor_2::from_slice(&metrics).unwrap();
    assert_eq!(metrics.num_canisters, 50);
    assert_eq!(metrics.consumed_cycles_total, (3 << 64) + 5);

    let ten = canister_id(10);
    let ten = ten.as_slice();
    assert_eq!(read(&state, &[b"canister", ten, b"module_hash"]), Some(vec![5; 32]));
    assert_eq!(read(&state, &[b"canister", ten, b"certified_data"]), Some(vec![]));
    assert_eq!(
        read(&state, &[b"canister", ten, b"metadata", b"candid:service"]),
        Some(b"service : {}".to_vec())
    );
    assert_eq!(read(&state, &[b"canister", ten, b"metadata", b"secret"]), Some(b"hidden".to_vec()));
    assert_eq!(
        read(&state, &[b"canister", ten, b"last_install_timestamp"]),
        Some(vec![0xac, 0x02])
    );
    assert_eq!(
        read(&state, &[b"canister", ten, b"canister_creation_timestamp"]),
        Some(vec![0xe8, 0x07])
    );
    let eleven = canister_id(11);
    let controllers = read(&state, &[b"canister", eleven.as_slice(), b"controllers"]).unwrap();
    assert_eq!(&controllers[..3], [0xd9, 0xd9, 0xf7]);
    let controllers: Vec<serde_bytes::ByteBuf> = serde_cbor_2::from_slice(&controllers).unwrap();
    assert_eq!(controllers, [Principal::anonymous().as_slice(), canister_id(3).as_slice()]);

    let request =
        |number, name: &[u8]| read(&state, &[b"request_status", &request_id(number).0, name]);
    assert_eq!(request(0, b"status"), Some(b"received".to_vec()));
    assert_eq!(request(1, b"status"), Some(b"processing".to_vec()));
    assert_eq!(request(2, b"status"), Some(b"replied".to_vec()));
    assert_eq!(request(2, b"reply"), Some(b"answer".to_vec()));
    assert_eq!(request(3, b"status"), Some(b"rejected".to_vec()));
    assert_eq!(request(3, b"reject_code"), Some(vec![5]));
    assert_eq!(request(3, b"reject_message"), Some(b"no".to_vec()));
    assert_eq!(request(3, b"error_code"), Some(b"IC0503".to_vec()));
}

#[test]
fn two_views_of_how_the_key_is_held_have_two_roots() {
    let nodes = subnet().nodes[..1].to_vec();
    let key =
        SubnetKey { summary: vec![1, 2], boundary: [3; 32], voters: vec![6], nodes: nodes.clone() };
    let state = |key: &SubnetKey| {
        let Fixture { mut canisters, mut history } = fixture();
        let tree = Arc::new(SubnetTree::holding(subnet(), key));
        let metrics = SubnetMetrics::default();
        let state = UncertifiedState::new(
            Height(4),
            Time(5),
            tree,
            metrics,
            &mut canisters,
            &mut history,
            None,
        );
        let signature = key_of_subnet().sign(&signed_message(&state.root())).serialize().to_vec();
        state.certify(signature)
    };
    let held = state(&key);
    assert_eq!(read(&held, &[b"subnet_key"]), Some(key.digest().to_vec()));
    assert_eq!(held.node_ids().collect::<Vec<_>>(), [nodes[0].node_id]);
    let further = SubnetKey { summary: vec![1, 3], ..key.clone() };
    let elsewhere = SubnetKey { boundary: [4; 32], ..key.clone() };
    assert_eq!(held.root(), state(&key).root());
    assert_ne!(held.root(), state(&further).root());
    assert_ne!(held.root(), state(&elsewhere).root());
    let voted_by_others = SubnetKey { voters: vec![7], ..key.clone() };
    assert_ne!(held.root(), state(&voted_by_others).root());
    let proof = held.key_proof().unwrap();
    assert_eq!(proof.voters, key.voters);
    assert_eq!(SubnetKey::digest_of(&proof.voters, &proof.rest), key.digest());
}

#[test]
fn what_does_not_exist_is_provably_absent() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    let (ten, eleven, far) = (canister_id(10), canister_id(11), canister_id(1_000));
    let (some, other, none) = (request_id(2), request_id(0), request_id(99));
    let subnet_id = state.subnet_id();
    let absent: &[&[&[u8]]] = &[
        &[b"api_boundary_nodes"],
        &[b"subnet_key"],
        &[b"api_boundary_nodes", b"x", b"domain"],
        &[b"zzz"],
        &[b"time", b"below"],
        &[b"canister", far.as_slice(), b"controllers"],
        &[b"canister", eleven.as_slice(), b"module_hash"],
        &[b"canister", eleven.as_slice(), b"last_install_timestamp"],
        &[b"canister", eleven.as_slice(), b"metadata", b"candid:service"],
        &[b"canister", ten.as_slice(), b"metadata", b"other"],
        &[b"request_status", &none.0],
        &[b"request_status", &none.0, b"reply"],
        &[b"request_status", &other.0, b"reply"],
        &[b"request_status", &some.0, b"reject_code"],
        &[b"request_status", &some.0, b"error_code"],
        &[b"subnet", b"nobody", b"public_key"],
        &[b"subnet", subnet_id.as_slice(), b"node", b"nobody", b"public_key"],
        &[b"canister_ranges", b"nobody"],
        &[b"subnet", subnet_id.as_slice(), b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i"],
    ];
    for labels in absent {
        assert_eq!(read(&state, labels), None, "{labels:?}");
    }
}

#[test]
fn an_empty_state_proves_absence_too() {
    let mut fixture = Fixture {
        canisters: CanisterMap::new(),
        history: IngressHistory::new(HistoryLimits { bytes_max: 1 << 20, unfinished_max: 100 }),
    };
    let state = certified(&mut fixture);
    assert_eq!(read(&state, &[b"request_status", &request_id(1).0, b"status"]), None);
    assert_eq!(read(&state, &[b"canister", canister_id(1).as_slice(), b"controllers"]), None);
}

#[test]
fn canister_ranges_are_the_same_in_both_forms() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    let subnet_id = state.subnet_id();
    type Ranges = Vec<(serde_bytes::ByteBuf, serde_bytes::ByteBuf)>;
    let decode = |bytes: &[u8]| {
        assert_eq!(&bytes[..3], [0xd9, 0xd9, 0xf7]);
        serde_cbor_2::from_slice::<Ranges>(bytes).unwrap()
    };
    let whole =
        decode(&read(&state, &[b"subnet", subnet_id.as_slice(), b"canister_ranges"]).unwrap());
    assert_eq!(whole.len(), 7);
    assert!(whole.is_sorted());
    let tree = verified(&state.certificate(&[path(&[b"canister_ranges", subnet_id.as_slice()])]));
    let shards: Vec<_> = tree
        .list_paths()
        .into_iter()
        .filter(|path| path[0].as_bytes() == b"canister_ranges")
        .collect();
    assert_eq!(shards.len(), 2);
    let mut together = Ranges::new();
    for shard in shards {
        let LookupResult::Found(ranges) =
            tree.lookup_path(shard.iter().map(|label| label.as_bytes()))
        else {
            panic!()
        };
        let ranges = decode(ranges);
        assert_eq!(
            ranges[0].0.as_slice(),
            shard[2].as_bytes(),
            "a shard is named by its first canister"
        );
        together.extend(ranges);
    }
    assert_eq!(together, whole);
}

#[test]
fn a_subnet_path_shows_all_keys() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    let subnet_id = state.subnet_id();
    let tree = verified(&state.certificate(&[path(&[b"subnet"])]));
    for node in state.node_ids() {
        let found = tree.lookup_path([
            b"subnet",
            subnet_id.as_slice(),
            b"node",
            node.as_slice(),
            b"public_key",
        ]);
        assert!(matches!(found, LookupResult::Found(key) if key.len() == 44));
    }
}

#[test]
fn certificate_behind_a_head_is_the_same_and_is_never_moved() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    for paths in [vec![], vec![path(&[b"request_status", &request_id(2).0])]] {
        let certificate = state.certificate(&paths);
        assert_eq!(certificate.capacity(), certificate.len(), "room for what it takes");
        let announced = std::cell::Cell::new(0);
        let body = state.certificate_behind(&paths, &|bytes| {
            announced.set(bytes);
            let mut head = Vec::with_capacity(bytes + 3);
            head.extend(*b"abc");
            head
        });
        assert_eq!(announced.get(), certificate.len());
        assert_eq!(body.capacity(), certificate.len() + 3);
        assert_eq!(body, [b"abc".as_slice(), &certificate].concat());
    }
}

#[test]
fn nobody_gets_everything() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    let tree = verified(&state.certificate(&[
        path(&[]),
        path(&[b"canister"]),
        path(&[b"request_status"]),
    ]));
    assert_eq!(tree.list_paths().len(), 1, "only the time");
}

#[test]
fn the_gateway_finds_what_its_rules_need() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    let entry = state.request(&request_id(2)).unwrap();
    assert_eq!(entry.sender, Principal::anonymous());
    assert_eq!(entry.effective_canister_id, canister_id(2));
    assert!(state.request(&request_id(99)).is_none());
    assert!(state.canister(&canister_id(10)).is_some());
    assert!(state.metadata(&canister_id(10), "candid:service").unwrap().public);
    assert!(!state.metadata(&canister_id(10), "secret").unwrap().public);
    assert!(state.metadata(&canister_id(11), "candid:service").is_none());
    assert_eq!(state.node_ids().count(), 2);
}

#[test]
fn readers_see_the_newest_height_and_keep_what_they_hold() {
    let mut fixture = fixture();
    let reader = CertifiedReader::new();
    assert!(reader.latest().is_none());
    let first = Arc::new(certified(&mut fixture));
    reader.publish(first.clone());
    fixture.history.finish(&request_id(0), Ok(vec![1]), Time(3));
    let subnet = Arc::new(SubnetTree::new(super::tests::subnet()));
    let second = UncertifiedState::new(
        Height(5),
        Time(4),
        subnet,
        SubnetMetrics::default(),
        &mut fixture.canisters,
        &mut fixture.history,
        None,
    );
    assert_ne!(second.root(), first.root());
    reader.publish(Arc::new(second.certify(vec![])));
    assert_eq!(reader.clone().latest().unwrap().height(), Height(5));
    reader.publish(first.clone());
    assert_eq!(reader.latest().unwrap().height(), Height(5));
    assert_eq!(
        read(&first, &[b"request_status", &request_id(0).0, b"status"]),
        Some(b"received".to_vec())
    );
}

#[test]
fn metrics_encode_with_and_without_a_high_part() {
    for consumed in [0, 5, u128::from(u64::MAX), 1 << 64, u128::MAX] {
        let metrics = SubnetMetrics {
            num_canisters: 1,
            canister_state_bytes: 2,
            consumed_cycles_total: consumed,
            update_transactions_total: 4,
        };
        let read: ic_transport_types::SubnetMetrics =
            serde_cbor_2::from_slice(&metrics.to_cbor()).unwrap();
        assert_eq!(read.consumed_cycles_total, consumed);
        assert_eq!(read.canister_state_bytes, 2);
        assert_eq!(read.update_transactions_total, 4);
    }
}

#[test]
fn a_manifest_is_read_out_of_its_certificate_and_out_of_no_other() {
    let mut fixture = fixture();
    let state = certified(&mut fixture);
    assert_eq!(state.manifest_certificate(), None, "there is no manifest");
    assert_eq!(ManifestClaim::read(&state.certificate(&[vec![b"state_manifest".to_vec()]])), None);
    let state = certified_with(&mut fixture, Some((Height(300), [9; 32])));
    let (height, bytes) = state.manifest_certificate().unwrap();
    let claim = ManifestClaim::read(&bytes).unwrap();
    assert_eq!((height, claim.height, claim.root), (Height(300), Height(300), [9; 32]));
    assert_eq!(claim.tree, state.state.subtree().digest());
    assert_eq!(claim.signature, state.signature());
    assert_eq!(claim.key, None, "provably absent");
    let hidden = state.certificate(&[vec![b"state_manifest".to_vec()]]);
    assert_eq!(ManifestClaim::read(&hidden), None, "the key may be hidden");
    // Whatever a peer changes, it says the same, says something else of another tree, or says
    // nothing.
    for at in 0..bytes.len() {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1;
        if let Some(other) = ManifestClaim::read(&changed) {
            assert!(
                other == claim || other.tree != claim.tree || other.signature != claim.signature,
                "{at}"
            );
        }
        assert_eq!(ManifestClaim::read(&bytes[..at]), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_paths_make_a_certificate_that_verifies(
        paths in prop::collection::vec(
            prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec!["time", "subnet", "canister", "canister_ranges", "request_status", "status",
                        "node", "metadata", "controllers", ""]).prop_map(|label| label.as_bytes().to_vec()),
                    (0u64..60).prop_map(|number| canister_id(number).as_slice().to_vec()),
                    (0u64..60).prop_map(|number| request_id(number).0.to_vec()),
                    Just(subnet().subnet_id.as_slice().to_vec()),
                    prop::collection::vec(any::<u8>(), 0..40),
                ],
                0..12,
            ),
            0..20,
        ),
    ) {
        let mut fixture = fixture();
        let state = certified(&mut fixture);
        let tree = verified(&state.certificate(&paths));
        for path in paths.iter().filter(|path| path.len() > 1) {
            prop_assert!(tree.lookup_path(path.iter()) != LookupResult::Unknown, "{path:?}");
        }
    }
}

/// Leaves of the certified tree are a part of its root: members with other bytes would disagree.
#[test]
fn leaves_in_cbor_have_exactly_these_bytes() {
    const TAG: &[u8] = &[0xd9, 0xd9, 0xf7];
    let id = |number: u8| [&[0x4a][..], &[0; 7], &[number, 1, 1]].concat();

    let controllers = [Principal::anonymous(), canister_id(3)];
    let expected = [TAG, &[0x82, 0x41, 0x04], &id(3)].concat();
    assert_eq!(canister::controllers_cbor(&controllers), expected);
    assert_eq!(canister::controllers_cbor(&controllers[..0]), [TAG, &[0x80]].concat());

    let ranges = [(canister_id(0), canister_id(99))];
    let expected = [TAG, &[0x81, 0x82], &id(0), &id(99)].concat();
    assert_eq!(subnet::ranges_cbor(&ranges), expected);

    // Integers have their shortest form, and the map has the order of its fields.
    let metrics = |consumed, cycles: &[u8]| {
        let metrics = SubnetMetrics {
            num_canisters: 1,
            canister_state_bytes: 1 << 32,
            consumed_cycles_total: consumed,
            update_transactions_total: 24,
        };
        let expected = [
            b"\xa4\x6dnum_canisters\x01\x74canister_state_bytes\x1b\0\0\0\x01\0\0\0\0".as_slice(),
            b"\x75consumed_cycles_total\xa2",
            cycles,
            b"\x78\x19update_transactions_total\x18\x18",
        ];
        assert_eq!(metrics.to_cbor(), expected.concat());
    };
    metrics(500, b"\x00\x19\x01\xf4\x01\xf6");
    metrics((3 << 64) + 70_000, b"\x00\x1a\x00\x01\x11\x70\x01\x03");
}

#[test]
fn certificates_have_exactly_these_bytes() {
    let tree = fork(labeled("a", leaf([1])), fork(empty(), pruned([7; 32])));
    let certificate = Certificate { tree, signature: vec![5; 48], delegation: None };
    let expected = [
        b"\xd9\xd9\xf7\xa2\x64tree\x83\x01\x83\x02\x41a\x82\x03\x41\x01".as_slice(),
        b"\x83\x01\x81\x00\x82\x04\x58\x20",
        &[7; 32],
        b"\x69signature\x58\x30",
        &[5; 48],
    ]
    .concat();
    assert_eq!(cbor(&certificate, true), expected);
    assert_eq!(cbor(&certificate, false), expected[3..]);
    assert_eq!(serde_cbor_2::from_slice::<Certificate>(&expected).unwrap(), certificate);
}

#[test]
fn manifest_certificate_is_refused_when_nested_too_deep_or_followed_by_bytes() {
    let encoded = |labels: usize| {
        let manifest = fork(labeled("height", leaf([44])), labeled("root", leaf([9; 32])));
        let deep = (0..labels).fold(empty(), |tree, _| labeled("z", tree));
        let tree = fork(labeled("state_manifest", manifest), deep);
        cbor(&Certificate { tree, signature: vec![5; 48], delegation: None }, true)
    };
    // The tag, the map, the fork, the labels and the empty tree below them: 127 levels at most.
    assert!(ManifestClaim::read(&encoded(123)).is_some());
    assert!(ManifestClaim::read(&encoded(124)).is_none());
    assert!(ManifestClaim::read(&[encoded(0), vec![0]].concat()).is_none());
}
