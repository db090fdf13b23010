//! The rules about answers, and a feed against servers of a test in this process.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use disk::RealDisk;
use proptest::prelude::*;
use relay_limits::Limits;
use sha3::{Digest, Keccak256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use super::*;
use crate::rln::rpc::RpcUrl;

const CONTRACT: Contract = Contract { chain_id: 1337, address: [7; 20] };

/// A word of the contract: big-endian, small enough for the field.
fn word(number: u8) -> [u8; 32] {
    let mut word = [0; 32];
    word[31] = number;
    word
}

/// The same as a root.
fn root(number: u8) -> Root {
    let mut root = word(number);
    root.reverse();
    root
}

fn roots(numbers: &[u8]) -> Vec<Root> {
    numbers.iter().map(|number| root(*number)).collect()
}

/// As the contract returns these, newest first.
fn returned(numbers: &[u8]) -> String {
    let mut words: Vec<u8> = numbers.iter().flat_map(|number| word(*number)).collect();
    words.resize(5 * 32, 0);
    format!("0x{}", hex::encode(words))
}

#[test]
fn selector_is_the_hash_of_the_signature() {
    let hash: [u8; 32] = Keccak256::digest(b"getRecentRoots()").into();
    assert_eq!(RECENT_ROOTS, format!("0x{}", hex::encode(&hash[..4])));
}

#[test]
fn result_is_a_list_of_field_elements_newest_first() {
    assert_eq!(decode_roots(&returned(&[3, 2, 1])), Ok(roots(&[3, 2, 1])));
    assert_eq!(decode_roots(&returned(&[])), Ok(Vec::new()));
    assert_eq!(decode_roots("0x"), Err(ReadError::NoContract));
    let mut largest = FIELD_ORDER;
    largest[31] -= 1;
    assert!(decode_roots(&format!("0x{}", hex::encode(largest))).is_ok());
    for wrong in [
        "",
        "0",
        "0x0",
        "0xzz",
        "0x00",
        &returned(&[1, 0, 2]),
        &format!("0x{}", hex::encode(FIELD_ORDER)),
        &format!("0x{}", "11".repeat(32 * (ROOTS_MAX + 1))),
    ] {
        assert_eq!(decode_roots(wrong), Err(ReadError::NotRoots), "{wrong}");
    }
}

#[test]
fn chain_ids_and_addresses_are_read_as_servers_write_them() {
    assert_eq!(decode_chain_id("0xe705"), Some(59_141));
    for wrong in ["", "59141", "0x", "0x1ffffffffffffffff", "0xg"] {
        assert_eq!(decode_chain_id(wrong), None, "{wrong}");
    }
    assert_eq!(parse_address(&format!("0x{}", "aB".repeat(20))), Some([0xab; 20]));
    for wrong in ["", "0x", &"ab".repeat(20), &format!("0x{}", "ab".repeat(21))] {
        assert_eq!(parse_address(wrong), None, "{wrong}");
    }
}

#[test]
fn the_newest_roots_stay_and_one_that_returns_is_the_newest() {
    let mut known = Vec::new();
    assert!(merge(&mut known, &roots(&[2, 1])));
    assert!(!merge(&mut known, &roots(&[2, 1])));
    assert!(merge(&mut known, &roots(&[3, 2])));
    assert_eq!(known, roots(&[3, 2, 1]));
    assert!(merge(&mut known, &roots(&[1, 3])));
    assert_eq!(known, roots(&[1, 3, 2]));
    for number in 4..100 {
        merge(&mut known, &roots(&[number, number - 1]));
    }
    assert_eq!(known.len(), ROOTS_MAX);
    assert_eq!((known[0], known[ROOTS_MAX - 1]), (root(99), root(50)));
}

#[test]
fn new_root_needs_more_than_half_of_the_servers() {
    let known = roots(&[1]);
    let agreed = |answers: &[&[u8]]| {
        let answers: Vec<Answer> =
            answers.iter().enumerate().map(|(server, numbers)| (server, roots(numbers))).collect();
        let Agreement { accepted, is_tied, outvoted } = agree(&known, &answers);
        (accepted, is_tied, outvoted)
    };
    assert_eq!(agreed(&[&[2, 1]]), (roots(&[2, 1]), false, vec![]));
    assert_eq!(agreed(&[&[2, 1], &[2, 1]]), (roots(&[2, 1]), false, vec![]));
    // Two that differ: nothing new.
    assert_eq!(agreed(&[&[2, 1], &[1]]), (roots(&[1]), true, vec![]));
    assert_eq!(agreed(&[&[1], &[9, 2, 1]]), (roots(&[1]), true, vec![]));
    // One that invents, and one that withholds.
    assert_eq!(agreed(&[&[9, 1], &[2, 1], &[2, 1]]), (roots(&[2, 1]), false, vec![0]));
    assert_eq!(agreed(&[&[2, 1], &[1], &[2, 1]]), (roots(&[2, 1]), false, vec![1]));
    assert!(agreed(&[&[9], &[8], &[2, 1], &[2, 1]]).1);
    // A server that withholds a root stays outvoted once that is known.
    let answers: Vec<Answer> =
        [&[2, 1][..], &[1], &[2, 1]].map(roots).into_iter().enumerate().collect();
    assert_eq!(agree(&roots(&[2, 1]), &answers).outvoted, [1]);
}

/// Behaviour of a server, which a test changes while it runs.
#[derive(Clone, Debug)]
enum Behaviour {
    /// Answers with these roots.
    Roots(Vec<u8>),
    /// Accepts and never answers.
    Silent,
    /// Another chain.
    Chain(u64),
    /// This whole response.
    Raw(String),
}

/// A server that answers calls; dropping the task set ends it.
struct Server {
    url: String,
    behaviour: Arc<Mutex<Behaviour>>,
    calls: Arc<AtomicUsize>,
}

impl Server {
    async fn start(tasks: &mut JoinSet<()>, behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/secretsecret", listener.local_addr().unwrap());
        let behaviour = Arc::new(Mutex::new(behaviour));
        let calls = Arc::new(AtomicUsize::new(0));
        let (shared, counted) = (behaviour.clone(), calls.clone());
        tasks.spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, SeqCst);
                let behaviour = shared.lock().unwrap().clone();
                let mut request = vec![0; 4096];
                let mut length = 0;
                while !request[..length].ends_with(b"}") {
                    let read = stream.read(&mut request[length..]).await.unwrap_or(0);
                    if read == 0 {
                        break;
                    }
                    length += read;
                }
                let request = String::from_utf8_lossy(&request[..length]).into_owned();
                assert!(request.starts_with("POST /secretsecret HTTP/1.1\r\n"), "{request}");
                let is_chain = request.contains("eth_chainId");
                let result = match behaviour {
                    Behaviour::Silent => {
                        open.push(stream);
                        continue;
                    }
                    Behaviour::Raw(response) => {
                        let _ = stream.write_all(response.as_bytes()).await;
                        continue;
                    }
                    Behaviour::Chain(id) => format!("0x{id:x}"),
                    Behaviour::Roots(_) if is_chain => "0x539".to_owned(),
                    Behaviour::Roots(numbers) => returned(&numbers),
                };
                let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":\"{result}\"}}");
                let length = body.len();
                let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
                let _ = stream.write_all(response.as_bytes()).await;
            }
        });
        Self { url, behaviour, calls }
    }

    fn now(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }
}

fn limits() -> RootsLimits {
    RootsLimits {
        request_millis: 300,
        disagree_seconds: 0,
        stale_seconds: 3_600,
        response_bytes: 2048,
        ..Limits::derive(128 << 20).unwrap().roots
    }
}

fn feed(servers: &[&Server], folder: &Path, limits: &RootsLimits) -> Arc<RootsFeed> {
    let servers =
        servers.iter().map(|server| RpcServer::new(&RpcUrl::from(server.url.clone())).unwrap());
    let place = (RealDisk::shared(), folder);
    RootsFeed::open(CONTRACT, servers.collect(), None, limits, place).unwrap()
}

#[tokio::test]
async fn roots_are_read_kept_on_disk_and_restored() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let server = Server::start(&mut tasks, Behaviour::Roots(vec![2, 1])).await;
    let one = feed(&[&server], folder.path(), &limits());
    assert_eq!(one.report().step, Step::None);
    one.refresh().await;
    assert_eq!(one.report().step, Step::Current);
    assert_eq!(one.trouble(), None);
    assert!(one.roots.contains(&root(2)) && !one.roots.contains(&root(3)));
    server.now(Behaviour::Roots(vec![3, 2, 1]));
    one.refresh().await;
    assert!(one.roots.contains(&root(3)) && one.roots.contains(&root(1)));
    assert_eq!(server.calls(), 3, "the chain is asked for once");

    server.now(Behaviour::Silent);
    let again = feed(&[&server], folder.path(), &limits());
    assert_eq!((again.report().step, again.report().roots), (Step::Restored, 3));
    again.refresh().await;
    assert!(again.roots.contains(&root(1)), "a server that is silent takes nothing away");
    assert_eq!(again.report().step, Step::Restored);
    let trouble = again.trouble().unwrap();
    assert!(trouble.contains("last run") && trouble.contains("request_millis"), "{trouble}");
    assert!(!trouble.contains("secretsecret"), "{trouble}");
}

#[tokio::test]
async fn next_server_answers_when_one_fails_or_is_slow_or_serves_another_chain() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    // One that answers alone confirms what is known.
    let file = RootsFile::new(RealDisk::shared(), folder.path(), CONTRACT);
    file.write(&roots(&[1])).unwrap();
    let good = Server::start(&mut tasks, Behaviour::Roots(vec![1])).await;
    let page = "HTTP/1.1 503 Unavailable\r\ncontent-length: 4\r\n\r\nbusy";
    let large = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(4096));
    let moved = "HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    let refused = "{\"id\":1,\"error\":{\"code\":-32005,\"message\":\"secretsecret used up\"}}";
    let refused =
        format!("HTTP/1.1 429 Many\r\ncontent-length: {}\r\n\r\n{refused}", refused.len());
    for (behaviour, reason) in [
        (Behaviour::Silent, "roots.request_millis (300)"),
        (Behaviour::Chain(5), "it serves chain 5, not 1337"),
        (Behaviour::Raw(page.to_owned()), "status 503"),
        (Behaviour::Raw(moved.to_owned()), "status 301"),
        (Behaviour::Raw(large), "roots.response_bytes (2048)"),
        (Behaviour::Raw(refused), "error -32005: *** used up"),
        (Behaviour::Raw("not HTTP\r\n\r\n".to_owned()), "HTTP failed"),
        (Behaviour::Raw(String::new()), "HTTP failed"),
    ] {
        let bad = Server::start(&mut tasks, behaviour).await;
        let feed = feed(&[&bad, &good], folder.path(), &limits());
        feed.refresh().await;
        let report = feed.report();
        assert_eq!(report.step, Step::Current);
        let [first, second] = &report.servers[..] else { panic!("{report:?}") };
        assert!(first.error.as_ref().unwrap().contains(reason), "{reason}: {first:?}");
        assert_eq!((second.answers, &second.error), (1, &None));
        assert!(!format!("{report:?}").contains("secretsecret"), "{report:?}");
        // The one that failed is not waited for at the next refresh.
        let calls = bad.calls();
        feed.refresh().await;
        assert_eq!((bad.calls(), feed.report().servers[1].answers), (calls, 2));
    }
}

#[tokio::test]
async fn two_servers_that_differ_give_nothing_new_until_they_agree() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let one = Server::start(&mut tasks, Behaviour::Roots(vec![1])).await;
    let two = Server::start(&mut tasks, Behaviour::Roots(vec![1])).await;
    let feed = feed(&[&one, &two], folder.path(), &limits());
    feed.refresh().await;
    assert_eq!(feed.report().step, Step::Current);
    two.now(Behaviour::Roots(vec![9, 1]));
    feed.refresh().await;
    assert_eq!(feed.report().step, Step::Disagreeing);
    assert!(feed.trouble().unwrap().contains("different roots"));
    assert!(!feed.roots.contains(&root(9)) && feed.roots.contains(&root(1)));
    // Not even when the honest one is silent.
    one.now(Behaviour::Silent);
    feed.refresh().await;
    assert!(!feed.roots.contains(&root(9)));
    one.now(Behaviour::Roots(vec![9, 1]));
    feed.state().servers[0].failed = None;
    feed.refresh().await;
    assert!(feed.roots.contains(&root(9)));
    assert_eq!(feed.report().step, Step::Current);
}

#[tokio::test]
async fn a_liar_among_three_is_outvoted_named_and_not_believed_alone() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start(&mut tasks, Behaviour::Roots(vec![1])).await);
    }
    let all: Vec<&Server> = servers.iter().collect();
    let feed = feed(&all, folder.path(), &limits());
    feed.refresh().await;
    servers[2].now(Behaviour::Roots(vec![9, 1]));
    for _ in 0..3 {
        feed.refresh().await;
    }
    let report = feed.report();
    assert_eq!(report.step, Step::Current);
    let named: Vec<bool> = report.servers.iter().map(|server| server.disagrees).collect();
    assert_eq!(named, [false, false, true]);
    servers[0].now(Behaviour::Silent);
    servers[1].now(Behaviour::Silent);
    feed.refresh().await;
    assert!(!feed.roots.contains(&root(9)));
}

#[tokio::test]
async fn one_that_answers_alone_is_believed_after_a_time_and_evicts_nothing() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let one = Server::start(&mut tasks, Behaviour::Silent).await;
    let two = Server::start(&mut tasks, Behaviour::Silent).await;
    let honest: Vec<u8> = (1..=50).rev().collect();
    let file = RootsFile::new(RealDisk::shared(), folder.path(), CONTRACT);
    file.write(&roots(&honest)).unwrap();
    let limits = RootsLimits { stale_seconds: 60, ..limits() };
    let feed = feed(&[&one, &two], folder.path(), &limits);
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let hear = |numbers: &[u8], seconds| {
        let written = feed.conclude(&[(1, roots(numbers))], after(seconds));
        assert_eq!(written, None, "a majority alone is written");
        assert!(honest.iter().all(|number| feed.roots.contains(&root(*number))));
    };
    hear(&[50, 49], 0);
    assert_eq!(feed.step(after(0)), (Step::Current, String::new()));
    for seconds in [1, 60] {
        hear(&[90, 50], seconds);
        assert!(!feed.roots.contains(&root(90)));
        let (step, why) = feed.step(after(seconds));
        assert!(step == Step::Disagreeing && why.contains("0 of its new roots"), "{why}");
    }
    hear(&[90, 50], 61);
    assert!(feed.roots.contains(&root(90)));
    assert_eq!(feed.report().roots, 51);
    for number in 91..=110 {
        hear(&[number, 50], 62);
        assert!(feed.roots.contains(&root(number)));
    }
    assert!(!feed.roots.contains(&root(100)) && feed.roots.contains(&root(101)));
    assert!(feed.step(after(62)).1.contains("10 of its new roots"));
    // What two agree on is valid, and nothing else stays of it.
    let both = [(0, roots(&[51, 50])), (1, roots(&[51, 50]))];
    let written = feed.conclude(&both, after(70)).unwrap();
    assert_eq!((written.len(), written[0], written[49]), (ROOTS_MAX, root(51), root(2)));
    assert!(feed.roots.contains(&root(51)) && !feed.roots.contains(&root(110)));
    assert_eq!(feed.conclude(&[(1, roots(&[110, 51]))], after(71)), None);
    assert!(!feed.roots.contains(&root(110)), "the time begins again");
}

#[tokio::test]
async fn silence_of_all_servers_is_reported_as_stale() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let server = Server::start(&mut tasks, Behaviour::Roots(vec![1])).await;
    let feed = feed(&[&server], folder.path(), &RootsLimits { stale_seconds: 0, ..limits() });
    feed.refresh().await;
    assert_eq!(feed.report().step, Step::Stale);
    assert!(feed.trouble().unwrap().contains("the last 1 are used"));
    assert!(feed.roots.contains(&root(1)));
}

#[tokio::test]
async fn refreshes_that_messages_cause_keep_their_distance() {
    let (mut tasks, folder) = (JoinSet::new(), tempfile::tempdir().unwrap());
    let server = Server::start(&mut tasks, Behaviour::Roots(vec![1])).await;
    let limits = RootsLimits { refresh_seconds: 3_600, refresh_interval_millis: 100, ..limits() };
    let feed = feed(&[&server], folder.path(), &limits);
    let began = Instant::now();
    tasks.spawn(feed.clone().run());
    while feed.report().refreshes < 5 {
        // Far more often than a refresh may be.
        assert!(!feed.roots.wait_for(&root(2), Duration::from_millis(1)).await);
    }
    assert!(began.elapsed() >= Duration::from_millis(4 * 100));
}

proptest! {
    #[test]
    fn any_result_is_roots_or_an_error(text in "(0x)?[0-9a-f]{0,400}") {
        if let Ok(roots) = decode_roots(&text) {
            prop_assert!(roots.len() <= ROOTS_MAX);
            prop_assert!(roots.iter().all(|root| *root != [0; 32]));
        }
    }

    /// Whatever servers answer, no root is accepted that most of them do not report, and the window
    /// keeps its bound and has nothing twice.
    #[test]
    fn only_majorities_are_accepted(
        known in proptest::collection::vec(1_u8..9, 0..5),
        answers in proptest::collection::vec(proptest::collection::vec(1_u8..9, 0..5), 1..5),
    ) {
        let mut window = Vec::new();
        merge(&mut window, &roots(&known));
        let answers: Vec<Answer> =
            answers.iter().enumerate().map(|(server, numbers)| (server, roots(numbers))).collect();
        let agreement = agree(&window, &answers);
        for root in &agreement.accepted {
            let votes = answers.iter().filter(|(_, roots)| roots.contains(root)).count();
            prop_assert!(window.contains(root) || votes * 2 > answers.len());
        }
        merge(&mut window, &agreement.accepted);
        prop_assert!(window.len() <= ROOTS_MAX);
        for (place, root) in window.iter().enumerate() {
            prop_assert!(!window[..place].contains(root));
        }
    }
}
