//! The root that rounds keep up to date equals the one computed from the values alone, whatever
//! changed in which order and whatever snapshots are held meanwhile; and no later round changes a
//! snapshot.

use std::sync::Arc;

use ic_certification::Certificate;
use ic_principal::Principal;
use pages::MemoryId;
use proptest::prelude::*;
use state::{
    CanisterId, CanisterMap, CanisterState, CertifiedState, CustomSection, Digest, ErrorCode,
    ExecutionState, Height, HistoryError, HistoryLimits, Hooks, Ingress, IngressHistory,
    InstalledModule, Memory, ModuleHash, ModuleInfo, Reject, RejectCode, ReplicatedState,
    RequestId, Settings, StateArc, SubnetInfo, SubnetMetrics, SubnetState, SubnetTree, SubnetType,
    Time, UncertifiedState, tree::leaf_digest,
};

const SECOND: u64 = 1_000_000_000;
/// Small, so that responses are dropped for room.
const LIMITS: HistoryLimits = HistoryLimits { bytes_max: 12 << 10, unfinished_max: 10 };

/// One change; canisters and calls are given by a number.
#[derive(Clone, Debug)]
enum Step {
    Create(u8),
    Remove(u8),
    /// Changes nothing that the tree shows, as most messages do.
    Count(u8),
    Certify(u8, Vec<u8>),
    Control(u8, u8),
    Install(u8, u8),
    Uninstall(u8),
    Receive(u8),
    Process(u8),
    Reply(u8, u16),
    Reject(u8),
    /// Seconds pass.
    Wait(u16),
    /// A checkpoint, that may fail.
    Save(bool),
    /// The round ends; its snapshot is held or not.
    Round(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let canister = || 0..12_u8;
    let call = || 0..40_u8;
    prop_oneof![
        3 => canister().prop_map(Step::Create),
        1 => canister().prop_map(Step::Remove),
        4 => canister().prop_map(Step::Count),
        2 => (canister(), prop::collection::vec(any::<u8>(), 0..32))
            .prop_map(|(id, data)| Step::Certify(id, data)),
        1 => (canister(), any::<u8>()).prop_map(|(id, other)| Step::Control(id, other)),
        2 => (canister(), 0..3_u8).prop_map(|(id, module)| Step::Install(id, module)),
        1 => canister().prop_map(Step::Uninstall),
        5 => call().prop_map(Step::Receive),
        3 => call().prop_map(Step::Process),
        5 => (call(), 0..2_000_u16).prop_map(|(id, bytes)| Step::Reply(id, bytes)),
        1 => call().prop_map(Step::Reject),
        1 => (0..200_u16).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Save),
        4 => any::<bool>().prop_map(Step::Round),
    ]
}

fn canister(number: u8) -> CanisterId {
    Principal::from_slice(&[0, number, 1, 1])
}

fn request(number: u8) -> RequestId {
    RequestId(leaf_digest(&[number]))
}

fn ingress(number: u8, now: Time) -> Ingress {
    Ingress {
        request_id: request(number),
        sender: Principal::anonymous(),
        canister_id: canister(number),
        effective_canister_id: canister(number),
        method_name: "go".into(),
        arg: vec![],
        ingress_expiry: Time(now.0 + u64::from(number) * SECOND),
        sender_info: None,
    }
}

fn module(number: u8) -> InstalledModule {
    let custom_sections = (0..number)
        .map(|section| CustomSection {
            public: section == 0,
            name: format!("section {section}"),
            content: vec![number; 200],
        })
        .collect();
    let info = ModuleInfo {
        updates: vec!["go".into()],
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
    InstalledModule::new(ModuleHash([number; 32]), 100, info)
}

struct Subject {
    state: ReplicatedState,
    now: Time,
    tree: Arc<SubnetTree>,
    held: Vec<(CertifiedState, Digest)>,
}

impl Subject {
    fn new() -> Self {
        let history = IngressHistory::new(LIMITS);
        let tree = SubnetTree::new(SubnetInfo {
            subnet_id: Principal::self_authenticating([1; 133]),
            public_key_der: vec![1; 133],
            subnet_type: SubnetType::Application,
            canister_ranges: vec![(canister(0), canister(99))],
            nodes: vec![],
        });
        Self {
            state: ReplicatedState::new(SubnetState::default(), history, [], 2 << 20),
            now: Time(1_000 * SECOND),
            tree: Arc::new(tree),
            held: Vec::new(),
        }
    }

    fn change(&mut self, number: u8, change: impl FnOnce(&mut CanisterState)) {
        if let Some(canister) = self.state.get_mut(&canister(number)) {
            canister.version += 1;
            change(canister);
        }
    }

    fn apply(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Create(number) => {
                let id = canister(number);
                if !self.state.contains(&id) {
                    let settings = Settings::default();
                    self.state.put(CanisterState::new(id, vec![id], settings, 0, now));
                }
            }
            Step::Remove(number) => drop(self.state.remove(&canister(number))),
            Step::Count(number) => self.change(number, |canister| {
                canister.global_timer = now;
                canister.log.push(now, vec![7; 30], 4096);
            }),
            Step::Certify(number, data) => {
                self.change(number, |canister| canister.certified_data = data);
            }
            Step::Control(number, other) => {
                self.change(number, |it| it.controllers = vec![canister(other)]);
            }
            Step::Install(number, version) => {
                let next = self.state.subnet.next_memory;
                self.state.subnet.next_memory += 2;
                self.change(number, |canister| {
                    let module = StateArc::new(module(version));
                    canister.installed_at = Some(now);
                    if let Some(execution) = &mut canister.execution {
                        execution.module = module;
                        return;
                    }
                    let memory = |id| Memory { id: MemoryId(id), wasm_pages: 1, layout: None };
                    let (heap, stable) = (memory(next), memory(next + 1));
                    let globals = vec![];
                    canister.execution = Some(ExecutionState { module, globals, heap, stable });
                });
            }
            Step::Uninstall(number) => self.change(number, |canister| canister.execution = None),
            // A call that is known, or finds no room, is passed over.
            Step::Receive(number) => {
                drop(self.state.history.receive(&ingress(number, now), now));
            }
            Step::Process(number) => self.state.history.processing(&request(number)),
            Step::Reply(number, bytes) => {
                let reply = vec![number; usize::from(bytes)];
                self.state.history.finish(&request(number), Ok(reply), now);
            }
            Step::Reject(number) => {
                let reject = Reject {
                    code: RejectCode::CanisterReject,
                    message: "no".into(),
                    error_code: ErrorCode(406),
                };
                self.state.history.finish(&request(number), Err(reject), now);
            }
            Step::Wait(seconds) => {
                self.now = Time(now.0 + u64::from(seconds) * SECOND);
                self.state.history.expire(self.now);
            }
            Step::Save(is_durable) => {
                let changes = self.state.history.begin_checkpoint();
                if is_durable {
                    self.state.history.finish_checkpoint(changes);
                }
            }
            Step::Round(is_held) => self.end_round(is_held),
        }
    }

    fn snapshot(
        &self,
        canisters: &mut CanisterMap,
        history: &mut IngressHistory,
    ) -> UncertifiedState {
        let (height, metrics) = (self.state.subnet.height, SubnetMetrics::default());
        let tree = Arc::clone(&self.tree);
        UncertifiedState::new(height, self.now, tree, metrics, canisters, history, None)
    }

    fn end_round(&mut self, is_held: bool) {
        self.state.subnet.height = Height(self.state.subnet.height.0 + 1);
        self.state.settle();
        self.state.check();
        let (height, metrics) = (self.state.subnet.height, SubnetMetrics::default());
        let tree = Arc::clone(&self.tree);
        let (canisters, history) = self.state.parts_mut();
        let kept = UncertifiedState::new(height, self.now, tree, metrics, canisters, history, None);
        // From the values alone, in the opposite order.
        let values: Vec<_> = self.state.canisters().cloned().map(Arc::new).collect();
        let mut canisters: CanisterMap = values.into_iter().rev().collect();
        let entries: Vec<_> = self.state.history.iter().cloned().collect();
        let records = entries.iter().rev().map(|entry| Ok((entry.id, entry.to_record().unwrap())));
        let mut history = IngressHistory::load::<HistoryError>(LIMITS, records).unwrap();
        let again = self.snapshot(&mut canisters, &mut history);
        assert_eq!(kept.root(), again.root(), "the kept root, and the one computed again");
        if is_held {
            self.held.push((kept.certify(vec![0; 48]), again.root()));
        }
    }

    /// Certificates of the states that are held still prove their roots.
    fn check_held(&self) {
        let requests =
            (0..40).map(|number| (b"request_status".to_vec(), request(number).0.to_vec()));
        let canisters =
            (0..12).map(|number| (b"canister".to_vec(), canister(number).as_slice().to_vec()));
        let paths: Vec<_> = requests.chain(canisters).map(|(top, id)| vec![top, id]).collect();
        for (state, root) in &self.held {
            for path in &paths {
                let certificate = state.certificate(std::slice::from_ref(path));
                let certificate: Certificate = serde_cbor_2::from_slice(&certificate).unwrap();
                assert_eq!(certificate.tree.digest(), *root, "{path:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    // Promise: P8 - The state root kept from round to round equals the root of the values.
    #[test]
    fn incremental_root_equals_recomputed_root(steps in prop::collection::vec(step(), 0..150)) {
        let mut subject = Subject::new();
        steps.into_iter().for_each(|step| subject.apply(step));
        subject.end_round(true);
        subject.check_held();
    }
}
