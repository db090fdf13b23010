//! Drives a gateway over a node that answers at once, and prints requests per second and latencies.
//!
//! `cargo run --release -p gateway --example throughput -- <seconds> <connections>`. It measures
//! the gateway's own cost: HTTP, CBOR, signatures. Client and gateway share the machine; the client
//! signs before the clock starts.

#![allow(clippy::unwrap_used)]

#[path = "../tests/it/support.rs"]
mod support;

use std::{
    io::Write,
    net::TcpStream,
    sync::{Arc, Barrier, Mutex},
    time::{Duration, Instant},
};

use accounting::Pool;
use gateway::{
    CertifiedView, Gateway, GatewayConfig, Health, Node, Refusal, RequestFacts, Waiters,
};
use ic_agent::{Identity, identity};
use ic_principal::Principal;
use ic_transport_types::EnvelopeContent;
use state::{
    CanisterId, Height, Ingress, QueryRequest, Reject, RequestId, SignedIngress, Time, Validity,
};
use support::{SubnetKey, call, canister, ed25519, gateway_limits, now, query, receive, sign};

/// The query whose reply the node keeps.
const KEPT: &str = "kept";

struct AtOnce;

impl CertifiedView for AtOnce {
    fn time(&self) -> Time {
        Time(0)
    }
    fn certificate(&self, _: &[Vec<Vec<u8>>]) -> Vec<u8> {
        Vec::new()
    }
    fn request(&self, _: &RequestId) -> Option<RequestFacts> {
        None
    }
    fn may_read_metadata(&self, _: &CanisterId, _: &str, _: &Principal) -> bool {
        true
    }
    fn outcome(&self, _: &RequestId) -> Option<gateway::Outcome> {
        None
    }
    fn public_metadata(&self, _: &Principal, _: &str) -> gateway::PublicMetadata {
        gateway::PublicMetadata::Absent
    }
}

impl Node for AtOnce {
    fn submit(&self, _: Ingress, _: SignedIngress, _: Validity) -> Result<(), Refusal> {
        Ok(())
    }
    fn inspect(&self, _: &Ingress) -> Result<(), Reject> {
        Ok(())
    }
    fn inspect_at_once(&self, _: &Ingress) -> Option<Result<(), Reject>> {
        Some(Ok(()))
    }
    fn kept_reply(&self, query: &QueryRequest, _: usize) -> Option<Arc<[u8]>> {
        (query.method_name == KEPT).then(|| query.arg.as_slice().into())
    }
    fn query(&self, query: QueryRequest) -> Result<Vec<u8>, Reject> {
        Ok(query.arg)
    }
    fn latest(&self) -> Option<Arc<dyn CertifiedView>> {
        Some(Arc::new(AtOnce))
    }
    fn now(&self) -> Time {
        now()
    }
    fn health(&self) -> Health {
        Health::new(None, Height(1))
    }
    fn hosts(&self, _: &CanisterId) -> bool {
        true
    }

    fn report(&self) -> gateway::report::Report {
        gateway::report::Report::default()
    }
}

fn config() -> GatewayConfig {
    let mut limits = gateway_limits();
    (limits.connections, limits.requests_in_flight, limits.queries_in_flight) = (1024, 1024, 512);
    let key = SubnetKey::new(1);
    GatewayConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        call_bytes: 2 << 20,
        ingress_expiry: Duration::from_secs(300),
        ingress_drift: Duration::from_secs(60),
        host_names: vec![],
        queries: gateway::QueryConcurrency {
            threads: 1,
            per_canister: 1,
            wait: Duration::from_secs(15),
        },
        verify_threads: 2,
        connections: Pool::standalone("connections", 64 << 20),
        bodies: Pool::standalone("bodies", limits.bodies_bytes),
        responses: Pool::standalone("responses", limits.responses_bytes),
        limits,
        node_key: ed25519_dalek::SigningKey::from_bytes(&[9; 32]),
        node_id: canister(1),
        subnet_id: key.id(),
        root_key_der: key.der(),
        version: "throughput".to_owned(),
        latencies: gateway::Latencies::default(),
        shutdown_grace: Duration::from_secs(1),
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Method {
    Update,
    Query,
    KeptQuery,
}

/// The requests one client sends, over and over: queries are the same each time, updates differ by
/// their nonce.
fn requests(identity: &dyn Identity, method: Method, client: u64) -> Vec<Vec<u8>> {
    let sender = identity.sender().unwrap();
    let updates = method == Method::Update;
    (0..if updates { 256 } else { 1 })
        .map(|number| {
            let mut content = match method {
                Method::Update => call(sender, "echo"),
                Method::Query => query(sender, "echo"),
                Method::KeptQuery => query(sender, KEPT),
            };
            if let EnvelopeContent::Call { nonce, .. } = &mut content {
                *nonce = Some((client << 32 | number).to_be_bytes().to_vec());
            }
            let body = sign(identity, content).encode_bytes();
            let operation = if updates { "v2" } else { "v3" };
            let path = format!(
                "/api/{operation}/canister/{}/{}",
                canister(1),
                if updates { "call" } else { "query" }
            );
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: node\r\ncontent-type: application/cbor\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), &body].concat()
        })
        .collect()
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().unwrap());
    let (seconds, connections) = (arguments.next().unwrap_or(5), arguments.next().unwrap_or(16));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let registry = Arc::new(Mutex::new(prometheus_client::registry::Registry::default()));
    let gateway = runtime
        .block_on(Gateway::start(config(), Arc::new(AtOnce), Waiters::new(1), registry))
        .unwrap();
    let address = gateway.local_addr();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{cores} cores, {connections} connections, {seconds} s each");
    let p256 = || {
        identity::Prime256v1Identity::from_private_key(
            p256::SecretKey::from_slice(&[2; 32]).unwrap(),
        )
    };
    let secp256k1 = || {
        identity::Secp256k1Identity::from_private_key(
            k256::SecretKey::from_slice(&[3; 32]).unwrap(),
        )
    };
    let anonymous = || Arc::new(identity::AnonymousIdentity);
    let cases: [(&str, Method, Arc<dyn Identity>); 7] = [
        ("anonymous kept queries", Method::KeptQuery, anonymous()),
        ("anonymous queries", Method::Query, anonymous()),
        ("Ed25519 queries", Method::Query, Arc::new(ed25519(1))),
        ("anonymous updates", Method::Update, anonymous()),
        ("Ed25519 updates", Method::Update, Arc::new(ed25519(1))),
        ("P-256 updates", Method::Update, Arc::new(p256())),
        ("secp256k1 updates", Method::Update, Arc::new(secp256k1())),
    ];
    for (name, method, identity) in cases {
        let barrier = Arc::new(Barrier::new(connections as usize + 1));
        let clients: Vec<_> = (0..connections)
            .map(|client| {
                let (barrier, identity) = (barrier.clone(), identity.clone());
                std::thread::spawn(move || {
                    let requests = requests(identity.as_ref(), method, client);
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.set_nodelay(true).unwrap();
                    let mut latencies = Vec::new();
                    barrier.wait();
                    let end = Instant::now() + Duration::from_secs(seconds);
                    for request in requests.iter().cycle() {
                        let start = Instant::now();
                        if start > end {
                            break;
                        }
                        stream.write_all(request).unwrap();
                        let answered = receive(&mut stream);
                        assert!([200, 202].contains(&answered.status), "{}", answered.text());
                        latencies.push(start.elapsed());
                    }
                    latencies
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let mut latencies: Vec<Duration> =
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect();
        let rate = latencies.len() as f64 / start.elapsed().as_secs_f64();
        latencies.sort_unstable();
        let at = |percent: usize| {
            latencies.get(latencies.len() * percent / 100).copied().unwrap_or_default()
        };
        println!("{name}: {rate:.0}/s, p50 {:?}, p99 {:?}", at(50), at(99));
    }
}
