//! A scripted node, and a client that may do what no library would: support for the tests of the
//! other files.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

#[path = "../../../envelope/tests/it/signing.rs"]
mod signing;

use accounting::Pool;
use ed25519_dalek::SigningKey;
use gateway::{
    CertifiedView, Gateway, GatewayConfig, GatewayHandle, Health, Latencies, Node, PublicMetadata,
    QueryConcurrency, Refusal, RequestFacts, Waiters, report::Report,
};
use ic_agent::{Agent, Identity};
use ic_principal::Principal;
use limits::GatewayLimits;
use prometheus_client::registry::Registry;
pub use signing::*;
use state::{
    ErrorCode, Height, Ingress, QueryRequest, Reject, RejectCode, RequestId, SignedIngress, Time,
    Validity,
};

#[derive(Clone, Debug)]
enum Outcome {
    Pending,
    Replied(Vec<u8>),
    Rejected(Reject),
}

#[derive(Clone, Debug)]
struct SubmittedCall {
    ingress: Ingress,
    outcome: Outcome,
}

/// What a canister says to a browser's request, or to one for a further piece.
pub type Pages = Arc<dyn Fn(&QueryRequest) -> Result<Vec<u8>, Reject> + Send + Sync>;

/// The double. Canisters 1 to 99 are hosted; methods do what their names say.
pub struct Script {
    pub key: SubnetKey,
    pub node_key: SigningKey,
    pub waiters: Waiters,
    /// When set, an update is certified in the moment it is submitted.
    pub at_once: AtomicBool,
    /// When set, the node has no state.
    pub starting: AtomicBool,
    pub submitted: AtomicUsize,
    pub inspected: AtomicUsize,
    pub queries: AtomicUsize,
    pub last_query: Mutex<Option<QueryRequest>>,
    pub last_ingress: Mutex<Option<Ingress>>,
    pub last_signed: Mutex<Option<SignedIngress>>,
    pub refuse: Mutex<Option<Refusal>>,
    pub report: Mutex<Report>,
    /// Reports being made, and those that were asked for.
    pub reporting: AtomicUsize,
    pub reports: AtomicUsize,
    known: Arc<Mutex<BTreeMap<RequestId, SubmittedCall>>>,
    hold: Mutex<Option<mpsc::Receiver<()>>>,
    /// Who answers queries of browsers.
    pub pages: Mutex<Option<Pages>>,
    report_gate: RwLock<()>,
}

impl Script {
    pub fn new(waiters: Waiters) -> Arc<Self> {
        Arc::new(Self {
            key: SubnetKey::new(1),
            node_key: SigningKey::from_bytes(&[9; 32]),
            waiters,
            at_once: AtomicBool::new(true),
            starting: AtomicBool::new(false),
            submitted: AtomicUsize::new(0),
            inspected: AtomicUsize::new(0),
            queries: AtomicUsize::new(0),
            last_query: Mutex::new(None),
            last_ingress: Mutex::new(None),
            last_signed: Mutex::new(None),
            refuse: Mutex::new(None),
            report: Mutex::default(),
            reporting: AtomicUsize::new(0),
            reports: AtomicUsize::new(0),
            known: Arc::default(),
            hold: Mutex::new(None),
            pages: Mutex::new(None),
            report_gate: RwLock::new(()),
        })
    }

    pub fn node_id(&self) -> Principal {
        Principal::self_authenticating(node_key_der(&self.node_key))
    }

    /// Queries named "hold" wait until the returned sender is dropped.
    pub fn hold_queries(&self) -> mpsc::Sender<()> {
        let (sender, receiver) = mpsc::channel();
        *self.hold.lock().unwrap() = Some(receiver);
        sender
    }

    /// Reports wait until the returned guard is dropped.
    pub fn hold_reports(&self) -> RwLockWriteGuard<'_, ()> {
        self.report_gate.write().unwrap()
    }

    /// Finishes the pending calls, and notifies the waiters.
    pub fn certify(&self) -> Vec<RequestId> {
        let mut finished = Vec::new();
        for (id, known) in self.known.lock().unwrap().iter_mut() {
            if matches!(known.outcome, Outcome::Pending) {
                known.outcome = match known.ingress.method_name.as_str() {
                    "reject" => Outcome::Rejected(reject()),
                    _ => Outcome::Replied(known.ingress.arg.clone()),
                };
                finished.push(*id);
            }
        }
        self.waiters.notify_certified(&finished);
        finished
    }

    pub fn state_tree(&self) -> Tree {
        let mut tree = Tree::default();
        let (subnet, node) = (self.key.id(), self.node_id());
        tree.set(&[b"time"], leb128(now().0));
        tree.set(&[b"subnet", subnet.as_slice(), b"public_key"], self.key.der());
        tree.set(&[b"subnet", subnet.as_slice(), b"type"], "application");
        let hosted = ranges(&[(canister(1), canister(99))]);
        tree.set(&[b"subnet", subnet.as_slice(), b"canister_ranges"], hosted.clone());
        tree.set(&[b"canister_ranges", subnet.as_slice(), canister(1).as_slice()], hosted);
        tree.set(
            &[b"subnet", subnet.as_slice(), b"node", node.as_slice(), b"public_key"],
            node_key_der(&self.node_key),
        );
        let metrics = ic_transport_types::SubnetMetrics {
            num_canisters: 3,
            canister_state_bytes: 4,
            consumed_cycles_total: 5,
            update_transactions_total: 6,
        };
        tree.set(
            &[b"subnet", subnet.as_slice(), b"metrics"],
            serde_cbor_2::to_vec(&metrics).unwrap(),
        );
        tree.set(&[b"canister", canister(1).as_slice(), b"module_hash"], vec![7; 32]);
        tree.set(
            &[b"canister", canister(1).as_slice(), b"controllers"],
            encode(&[serde_bytes::ByteBuf::from(canister(2).as_slice())]),
        );
        tree.set(
            &[b"canister", canister(1).as_slice(), b"metadata", b"candid:service"],
            "service : {}",
        );
        tree.set(&[b"canister", canister(1).as_slice(), b"metadata", b"secret"], "for controllers");
        for (id, known) in self.known.lock().unwrap().iter() {
            let mut set =
                |name: &[u8], value: Vec<u8>| tree.set(&[b"request_status", &id.0, name], value);
            match &known.outcome {
                Outcome::Pending => set(b"status", b"processing".to_vec()),
                Outcome::Replied(reply) => {
                    set(b"status", b"replied".to_vec());
                    set(b"reply", reply.clone());
                }
                Outcome::Rejected(reject) => {
                    set(b"status", b"rejected".to_vec());
                    set(b"reject_code", leb128(reject.code as u64));
                    set(b"reject_message", reject.message.clone().into_bytes());
                    set(b"error_code", reject.error_code.to_string().into_bytes());
                }
            }
        }
        tree
    }
}

pub fn node_key_der(key: &SigningKey) -> Vec<u8> {
    let prefix = [48, 42, 48, 5, 6, 3, 43, 101, 112, 3, 33, 0];
    [&prefix[..], key.verifying_key().as_bytes()].concat()
}

pub fn reject() -> Reject {
    Reject {
        code: RejectCode::CanisterReject,
        message: "as you wish".to_owned(),
        error_code: ErrorCode(406),
    }
}

/// A view is made for every look, so it signs lazily.
struct LazyView(Arc<Script>, BTreeMap<RequestId, RequestFacts>);

impl CertifiedView for LazyView {
    fn time(&self) -> Time {
        Time(0)
    }
    fn certificate(&self, _: &[Vec<Vec<u8>>]) -> Vec<u8> {
        self.0.key.certificate(&self.0.state_tree(), None)
    }
    fn request(&self, id: &RequestId) -> Option<RequestFacts> {
        self.1.get(id).copied()
    }
    fn may_read_metadata(&self, _: &Principal, name: &str, sender: &Principal) -> bool {
        name != "secret" || *sender == canister(2)
    }
    fn outcome(&self, id: &RequestId) -> Option<gateway::Outcome> {
        match &self.0.known.lock().unwrap().get(id)?.outcome {
            Outcome::Pending => None,
            Outcome::Replied(reply) => Some(gateway::Outcome::Replied(reply.clone())),
            Outcome::Rejected(reject) => Some(gateway::Outcome::Rejected(reject.clone())),
        }
    }
    fn public_metadata(&self, _: &Principal, name: &str) -> PublicMetadata {
        if name == "secret" { PublicMetadata::Private } else { PublicMetadata::Absent }
    }
}

/// The double as the gateway sees it.
pub struct ScriptNode(pub Arc<Script>);

impl Node for ScriptNode {
    fn submit(
        &self,
        ingress: Ingress,
        signed: SignedIngress,
        validity: Validity,
    ) -> Result<(), Refusal> {
        self.0.submitted.fetch_add(1, Ordering::SeqCst);
        let sent = envelope::Envelope::decode(
            &signed.envelope,
            &envelope::EnvelopeBounds::new(&gateway_limits()),
        )
        .unwrap();
        assert_eq!(
            sent.request_id, ingress.request_id,
            "the envelope handed on is the one that was sent"
        );
        assert_eq!(signed.effective_canister_id, ingress.effective_canister_id);
        assert!(validity.from < ingress.ingress_expiry && validity.until <= ingress.ingress_expiry);
        self.0.last_signed.lock().unwrap().replace(signed);
        if let Some(refusal) = self.0.refuse.lock().unwrap().clone() {
            return Err(refusal);
        }
        *self.0.last_ingress.lock().unwrap() = Some(ingress.clone());
        self.0
            .known
            .lock()
            .unwrap()
            .insert(ingress.request_id, SubmittedCall { ingress, outcome: Outcome::Pending });
        if self.0.at_once.load(Ordering::SeqCst) {
            self.0.certify();
        }
        Ok(())
    }

    fn inspect(&self, ingress: &Ingress) -> Result<(), Reject> {
        self.0.inspected.fetch_add(1, Ordering::SeqCst);
        if ingress.method_name == "inspected_away" { Err(reject()) } else { Ok(()) }
    }

    fn inspect_at_once(&self, ingress: &Ingress) -> Option<Result<(), Reject>> {
        match ingress.method_name.as_str() {
            "accepted_at_once" => Some(Ok(())),
            "refused_at_once" => Some(Err(reject())),
            _ => None,
        }
    }

    fn kept_reply(&self, query: &QueryRequest, bytes_max: usize) -> Option<Arc<[u8]>> {
        let is_kept = query.method_name == "kept" && query.arg.len() <= bytes_max;
        is_kept.then(|| query.arg.as_slice().into())
    }

    fn query(&self, query: QueryRequest) -> Result<Vec<u8>, Reject> {
        self.0.queries.fetch_add(1, Ordering::SeqCst);
        *self.0.last_query.lock().unwrap() = Some(query.clone());
        let pages = self.0.pages.lock().unwrap().clone();
        if let Some(pages) = pages {
            return pages(&query);
        }
        match query.method_name.as_str() {
            "reject" => Err(reject()),
            "panic" => panic!("a node that fails, as it was asked to"),
            "large" => Ok(vec![7; 1 << 20]),
            "hold" => {
                let hold = self.0.hold.lock().unwrap();
                if let Some(hold) = hold.as_ref() {
                    let _ = hold.recv();
                }
                Ok(Vec::new())
            }
            _ => Ok(query.arg),
        }
    }

    fn latest(&self) -> Option<Arc<dyn CertifiedView>> {
        if self.0.starting.load(Ordering::SeqCst) {
            return None;
        }
        let known = self.0.known.lock().unwrap();
        let facts = known.iter().map(|(id, known)| {
            let ingress = &known.ingress;
            (
                *id,
                RequestFacts {
                    sender: ingress.sender,
                    effective_canister_id: ingress.effective_canister_id,
                    canister_id: ingress.canister_id,
                    terminal: !matches!(known.outcome, Outcome::Pending),
                },
            )
        });
        Some(Arc::new(LazyView(self.0.clone(), facts.collect())))
    }

    fn now(&self) -> Time {
        now()
    }

    fn health(&self) -> Health {
        let healthy = !self.0.starting.load(Ordering::SeqCst);
        Health {
            healthy,
            status: if healthy { "healthy" } else { "starting in /var/lib/node" }.to_owned(),
            client_status: if healthy { "healthy" } else { "starting" }.to_owned(),
            certified_height: Height(5),
        }
    }

    fn hosts(&self, canister_id: &Principal) -> bool {
        (canister(1)..=canister(99)).contains(canister_id)
    }

    fn report(&self) -> Report {
        self.0.reporting.fetch_add(1, Ordering::SeqCst);
        self.0.reports.fetch_add(1, Ordering::SeqCst);
        drop(self.0.report_gate.read().unwrap());
        self.0.reporting.fetch_sub(1, Ordering::SeqCst);
        self.0.report.lock().unwrap().clone()
    }
}

pub struct World {
    pub script: Arc<Script>,
    pub gateway: GatewayHandle,
    pub registry: Arc<Mutex<Registry>>,
    pub address: SocketAddr,
    pub bodies: Pool,
    pub responses: Pool,
    pub latencies: Latencies,
}

impl World {
    pub async fn start() -> Self {
        Self::with(gateway_limits()).await
    }

    pub async fn with(limits: GatewayLimits) -> Self {
        let wait = Duration::from_secs(60);
        Self::with_queries(limits, QueryConcurrency { threads: 2, per_canister: 2, wait }).await
    }

    pub async fn with_queries(limits: GatewayLimits, queries: QueryConcurrency) -> Self {
        let waiters = Waiters::new(limits.sync_calls_waiting);
        let script = Script::new(waiters.clone());
        let registry = Arc::new(Mutex::new(Registry::default()));
        let (bodies, responses) = (
            Pool::standalone("bodies", limits.bodies_bytes),
            Pool::standalone("responses", limits.responses_bytes),
        );
        let latencies = Latencies::default();
        let config = GatewayConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            limits,
            call_bytes: 200_000,
            ingress_expiry: Duration::from_secs(300),
            ingress_drift: Duration::from_secs(60),
            host_names: vec!["node".to_owned()],
            queries,
            verify_threads: 2,
            connections: accounting::Pool::standalone("connections", 64 << 20),
            bodies: bodies.clone(),
            responses: responses.clone(),
            node_key: script.node_key.clone(),
            node_id: script.node_id(),
            subnet_id: script.key.id(),
            root_key_der: script.key.der(),
            version: "0.1.0-test".to_owned(),
            latencies: latencies.clone(),
            shutdown_grace: Duration::from_secs(5),
        };
        let gateway =
            Gateway::start(config, Arc::new(ScriptNode(script.clone())), waiters, registry.clone())
                .await
                .unwrap();
        let address = gateway.local_addr();
        Self { script, gateway, registry, address, bodies, responses, latencies }
    }

    pub fn agent(&self, identity: impl Identity + 'static) -> Agent {
        let agent = Agent::builder()
            .with_url(format!("http://{}", self.address))
            .with_identity(identity)
            .with_max_polling_time(Duration::from_secs(20))
            .build()
            .unwrap();
        agent.set_root_key(self.script.key.der());
        agent
    }

    /// Sends bytes on a blocking thread and parses the answer.
    pub async fn send(&self, request: Vec<u8>) -> TestResponse {
        let address = self.address;
        tokio::task::spawn_blocking(move || send(address, &request)).await.unwrap()
    }

    pub async fn post(&self, path: &str, body: &[u8]) -> TestResponse {
        self.send(post(path, "application/cbor", body)).await
    }

    pub async fn get(&self, path: &str) -> TestResponse {
        self.send(
            format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n").into_bytes(),
        )
        .await
    }

    pub async fn metric(&self, line: &str) -> Option<f64> {
        let text = self.get("/metrics").await.text();
        text.lines()
            .find_map(|found| found.strip_prefix(line))
            .map(|value| value.trim().parse().unwrap())
    }
}

#[derive(Clone, Debug)]
pub struct TestResponse {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl TestResponse {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn cbor(&self) -> serde_cbor_2::Value {
        serde_cbor_2::from_slice(&self.body).unwrap()
    }
}

pub fn post(path: &str, content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub fn send(address: SocketAddr, request: &[u8]) -> TestResponse {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The gateway may answer and close before it has read everything.
    let _ = stream.write_all(request);
    receive(&mut stream)
}

pub fn receive(stream: &mut TcpStream) -> TestResponse {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16384];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
            let mut lines = head.lines();
            let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
            let headers: BTreeMap<String, String> = lines
                .map(|line| line.split_once(": ").unwrap())
                .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
                .collect();
            let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return TestResponse {
                    status,
                    headers,
                    body: bytes[end + 4..end + 4 + length].to_vec(),
                };
            }
        }
        match stream.read(&mut buffer) {
            Ok(0) => panic!("closed after {:?}", String::from_utf8_lossy(&bytes)),
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(error) => panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)),
        }
    }
}
