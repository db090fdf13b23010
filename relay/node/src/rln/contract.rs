//! Valid roots of the membership tree, from the contract: asked for, compared, kept.
//!
//! # The contract
//!
//! `getRecentRoots()` takes nothing and returns `uint256[5]`: the newest roots, newest first, zeros
//! after the last one. A proof against any of the newest [`ROOTS_MAX`] roots is valid, as in the
//! reference implementation, so older ones are kept here. Source: logos-delivery,
//! `group_manager.nim` and `constants.nim` (August 2026); the contract waku-rlnv2-contract.
//!
//! # Which servers are asked
//!
//! Servers take turns, one call for each refresh. All of them are asked when the one whose turn it
//! is reports a root that is not known here, or when they differed before. So a server that invents
//! a root is noticed at once, one that withholds a root when the turn of another comes. A refresh
//! is due every `roots.refresh_seconds`, and when a message names an unknown root
//! ([`Roots::wanted`]), never sooner than `roots.refresh_interval_millis` after the last.
//!
//! A new root is accepted when more than half of the servers that answered report it ([`agree`]).
//! With two that differ, nothing new is accepted until they agree. A server that keeps reporting
//! other roots than the majority is named, and not believed alone.
//!
//! A server that is the only one that is named is believed. One of several that answers alone,
//! because the others fail, confirms known roots. What it reports beside them for
//! `roots.stale_seconds` is valid *provisionally*: until two answer again, at most
//! [`PROVISIONAL_MAX`] roots, which take no place of roots that a majority confirmed.
//!
//! # When no server answers
//!
//! The roots stay as they are ([`Step`]): a root never becomes invalid by time, only by 50 newer
//! ones, so messages of members that were registered before remain verifiable.
//!
//! Bounds: [`SERVERS_MAX`] servers, [`ROOTS_MAX`] and [`PROVISIONAL_MAX`] roots; calls are made one
//! after the other.

use std::{
    fmt,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use disk::SharedDisk;
use relay_limits::RootsLimits;
use serde_json::json;
use thiserror::Error;
use tokio::time::sleep_until;

use super::{
    keystore::Membership,
    roots::Roots,
    roots_file::RootsFile,
    rpc::{CallLimits, RpcClient, RpcError, RpcServer},
    status::{RootsReport, ServerReport, Step},
};

/// The newest roots against which a proof is valid.
pub(crate) const ROOTS_MAX: usize = 50;
/// Servers that may be named.
pub(crate) const SERVERS_MAX: usize = 4;
/// Selector of `getRecentRoots()`: the first bytes of the Keccak-256 hash of its signature.
const RECENT_ROOTS: &str = "0xe63337c3";
/// Newest roots of a server that answers alone: two answers.
const PROVISIONAL_MAX: usize = 10;
const _: () = assert!(ROOTS_MAX + PROVISIONAL_MAX <= super::roots::ROOTS_MAX);
/// Between two calls to a server that failed, while others answer; and while one of them reports a
/// root that is not valid.
const RETRY: Duration = Duration::from_secs(60);
const RETRY_NEWS: Duration = Duration::from_secs(5);
/// Order of the scalar field of BN254, big-endian: roots are below it.
const FIELD_ORDER: Root = [
    0x30, 0x64, 0x4e, 0x72, 0xe1, 0x31, 0xa0, 0x29, 0xb8, 0x50, 0x45, 0xb6, 0x81, 0x81, 0x58, 0x5d,
    0x28, 0x33, 0xe8, 0x48, 0x79, 0xb9, 0x70, 0x91, 0x43, 0xe1, 0xf5, 0x93, 0xf0, 0x00, 0x00, 0x01,
];

/// A root: a field element, little-endian, as in the proofs of messages.
pub(crate) type Root = [u8; 32];

/// A membership contract, on its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Contract {
    pub(crate) chain_id: u64,
    pub(crate) address: [u8; 20],
}

impl fmt::Display for Contract {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "0x{} of chain {}", hex::encode(self.address), self.chain_id)
    }
}

/// The address of a contract as it is written: `0x` and 40 hexadecimal digits of either case.
pub(crate) fn parse_address(text: &str) -> Option<[u8; 20]> {
    let mut address = [0; 20];
    hex::decode_to_slice(text.strip_prefix("0x")?, &mut address).ok()?;
    Some(address)
}

/// Why a server's answer has no roots.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Call(#[from] RpcError),
    #[error("it serves chain {found}, not {expected}")]
    Chain { found: String, expected: u64 },
    #[error("there is no contract with getRecentRoots() at this address")]
    NoContract,
    #[error("what it returns is not a list of roots")]
    NotRoots,
}

/// The roots in the result of the call, newest first.
fn decode_roots(result: &str) -> Result<Vec<Root>, ReadError> {
    let bytes = result.strip_prefix("0x").and_then(|digits| hex::decode(digits).ok());
    let bytes = bytes.ok_or(ReadError::NotRoots)?;
    if bytes.is_empty() {
        return Err(ReadError::NoContract);
    }
    let (words, rest) = bytes.as_chunks::<32>();
    if !rest.is_empty() || words.len() > ROOTS_MAX {
        return Err(ReadError::NotRoots);
    }
    let used = words.iter().position(|word| *word == [0; 32]).unwrap_or(words.len());
    let (roots, unused) = words.split_at(used);
    if roots.iter().any(|root| *root >= FIELD_ORDER) || unused.iter().any(|word| *word != [0; 32]) {
        return Err(ReadError::NotRoots);
    }
    Ok(roots
        .iter()
        .map(|root| {
            let mut root = *root;
            root.reverse();
            root
        })
        .collect())
}

/// `chain_id` of a result such as `0xe705`.
fn decode_chain_id(result: &str) -> Option<u64> {
    u64::from_str_radix(result.strip_prefix("0x")?, 16).ok()
}

/// Puts roots, newest first, before those that are known; returns whether anything changed. A root
/// that was valid before and is the tree's again moves to the front.
fn merge(known: &mut Vec<Root>, newest_first: &[Root]) -> bool {
    let mut merged: Vec<Root> = Vec::with_capacity(ROOTS_MAX);
    for root in newest_first.iter().chain(known.iter()) {
        if merged.len() < ROOTS_MAX && !merged.contains(root) {
            merged.push(*root);
        }
    }
    let changed = merged != *known;
    *known = merged;
    changed
}

/// The roots that one server reported, newest first.
type Answer = (usize, Vec<Root>);

/// What follows from the answers of all servers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Agreement {
    /// Newest first.
    accepted: Vec<Root>,
    /// As many servers report a root as do not.
    is_tied: bool,
    /// Servers that report a root that most others do not, or not one that most others do.
    outvoted: Vec<usize>,
}

/// Compares answers. Roots that are `known` were accepted before, and need no votes.
fn agree(known: &[Root], answers: &[Answer]) -> Agreement {
    let votes = |root: &Root| answers.iter().filter(|(_, roots)| roots.contains(root)).count();
    let has_majority = |root: &Root| votes(root) * 2 > answers.len();
    let is_accepted = |root: &&Root| known.contains(root) || has_majority(root);
    // The order is that of the server that knows most of them.
    let best = answers.iter().max_by_key(|(_, roots)| roots.iter().filter(is_accepted).count());
    let best = best.into_iter().flat_map(|(_, roots)| roots);
    let all = best.chain(answers.iter().flat_map(|(_, roots)| roots));
    let mut agreement = Agreement::default();
    for root in all {
        if is_accepted(&root) && !agreement.accepted.contains(root) {
            agreement.accepted.push(*root);
        }
        agreement.is_tied |= !known.contains(root) && votes(root) * 2 == answers.len();
    }
    let differs = |(server, roots): &Answer| {
        let invented =
            roots.iter().any(|root| !is_accepted(&root) && votes(root) * 2 < answers.len());
        let mut expected = agreement.accepted.iter().filter(|root| has_majority(root));
        (invented || expected.any(|root| !roots.contains(root))).then_some(*server)
    };
    agreement.outvoted = answers.iter().filter_map(differs).collect();
    agreement
}

/// State of one server.
#[derive(Debug, Default)]
struct ServerState {
    answers: u64,
    failures: u64,
    /// Why the last call failed, if it did, and when.
    failed: Option<(ReadError, Instant)>,
    is_chain_checked: bool,
    /// Since when it reports other roots than the others.
    differs: Option<Instant>,
}

/// As many servers report a root as do not.
#[derive(Clone, Copy, Debug)]
struct Tie {
    since: Instant,
    /// When they were last compared.
    compared: Instant,
}

#[derive(Debug)]
struct FeedState {
    /// Newest first.
    known: Vec<Root>,
    /// Valid as well, newest first, and not on disk.
    provisional: Vec<Root>,
    /// Since when one of several servers answers alone, with new roots.
    alone: Option<Instant>,
    servers: Vec<ServerState>,
    /// Whose turn it is.
    turn: usize,
    refreshes: u64,
    /// The last refresh with an answer that counts.
    refreshed: Option<Instant>,
    tied: Option<Tie>,
    /// The last step that was logged.
    logged: Option<Step>,
}

/// Reads the roots of a contract from its servers and keeps [`Roots`] up to date.
pub(crate) struct RootsFeed {
    /// What verification reads.
    pub(crate) roots: Arc<Roots>,
    pub(crate) contract: Contract,
    /// The operator's own membership, if there is a keystore.
    pub(crate) membership: Option<Membership>,
    servers: Vec<RpcServer>,
    client: RpcClient,
    limits: RootsLimits,
    file: RootsFile,
    state: Mutex<FeedState>,
}

impl RootsFeed {
    /// A feed with the roots of the last run, if the data folder has any of this contract.
    ///
    /// Errors: those of the cryptographic provider.
    pub(crate) fn open(
        contract: Contract,
        servers: Vec<RpcServer>,
        membership: Option<Membership>,
        limits: &RootsLimits,
        (disk, folder): (SharedDisk, &Path),
    ) -> Result<Arc<Self>, rustls::Error> {
        let client = RpcClient::new(CallLimits {
            time: Duration::from_millis(limits.request_millis),
            response_bytes: usize::try_from(limits.response_bytes).unwrap_or(usize::MAX),
        })?;
        let file = RootsFile::new(disk, folder, contract);
        let known = file.read();
        let roots = Roots::default();
        if !known.is_empty() {
            roots.replace(known.clone());
        }
        for server in servers.iter().filter(|server| server.is_exposed()) {
            tracing::warn!(
                server = server.name(),
                "roots are read without TLS: what is between this node and the server can change \
                 them"
            );
        }
        let states = servers.iter().map(|_| ServerState::default()).collect();
        Ok(Arc::new(Self {
            roots: Arc::new(roots),
            contract,
            membership,
            servers,
            client,
            limits: limits.clone(),
            file,
            state: Mutex::new(FeedState {
                known,
                provisional: Vec::new(),
                alone: None,
                servers: states,
                turn: 0,
                refreshes: 0,
                refreshed: None,
                tied: None,
                logged: None,
            }),
        }))
    }

    /// For as long as the guard lives: never across a wait.
    fn state(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refreshes for ever.
    pub(crate) async fn run(self: Arc<Self>) {
        let period = Duration::from_secs(self.limits.refresh_seconds);
        let pause = Duration::from_millis(self.limits.refresh_interval_millis);
        loop {
            let began = tokio::time::Instant::now();
            self.refresh().await;
            tokio::select! {
                () = sleep_until(began + period.max(pause)) => {}
                () = self.roots.wanted() => sleep_until(began + pause).await,
            }
        }
    }

    /// Asks one server, or all if that one has news, and takes over what they agree on.
    async fn refresh(self: &Arc<Self>) {
        let mut answers: Vec<Answer> = Vec::new();
        for server in self.order() {
            if !self.is_needed(server, &answers) {
                continue;
            }
            match self.ask(server).await {
                Ok(roots) => {
                    self.answered(server);
                    answers.push((server, roots));
                }
                Err(error) => self.failed(server, error),
            }
        }
        if let Some(known) = self.conclude(&answers, Instant::now()) {
            let feed = self.clone();
            // A disk that fails costs the roots after a restart, nothing else.
            let written = tokio::task::spawn_blocking(move || feed.file.write(&known)).await;
            if let Ok(Err(error)) = written {
                tracing::warn!(%error, "the roots cannot be written");
            }
        }
        self.log_step();
    }

    /// Servers in the order in which they are asked: the one whose turn it is, then the others;
    /// those that failed last.
    fn order(&self) -> Vec<usize> {
        let mut state = self.state();
        let count = state.servers.len();
        let begin = state.turn;
        state.turn = (begin + 1) % count.max(1);
        state.refreshes += 1;
        let mut order: Vec<usize> = (0..count).map(|offset| (begin + offset) % count).collect();
        order.sort_by_key(|server| state.servers[*server].failed.is_some());
        order
    }

    /// Whether a server is asked after these answers: the first one that answers, all for a
    /// comparison, and one that failed, now and then.
    fn is_needed(&self, server: usize, answers: &[Answer]) -> bool {
        let state = self.state();
        if answers.is_empty() {
            return true;
        }
        let mut reported = answers.iter().flat_map(|(_, roots)| roots);
        if let Some((_, at)) = &state.servers[server].failed {
            let is_news =
                |root: &Root| !state.known.contains(root) && !state.provisional.contains(root);
            let retry = if reported.any(is_news) { RETRY_NEWS } else { RETRY };
            return at.elapsed() >= retry;
        }
        reported.any(|root| !state.known.contains(root))
            || state.tied.is_some()
            || state.servers.iter().any(|server| server.differs.is_some())
    }

    async fn ask(&self, number: usize) -> Result<Vec<Root>, ReadError> {
        let server = &self.servers[number];
        if !self.state().servers[number].is_chain_checked {
            let found = self.client.call(server, "eth_chainId", json!([])).await?;
            let expected = self.contract.chain_id;
            if decode_chain_id(&found) != Some(expected) {
                let found = decode_chain_id(&found).map_or("none".to_owned(), |id| id.to_string());
                return Err(ReadError::Chain { found, expected });
            }
        }
        let to = format!("0x{}", hex::encode(self.contract.address));
        let call = json!([{ "to": to, "data": RECENT_ROOTS }, "latest"]);
        decode_roots(&self.client.call(server, "eth_call", call).await?)
    }

    fn answered(&self, number: usize) {
        let mut state = self.state();
        let server = &mut state.servers[number];
        server.answers += 1;
        server.is_chain_checked = true;
        if server.failed.take().is_some() {
            tracing::info!(server = self.servers[number].name(), "the RPC server answers again");
        }
    }

    /// Logged when the reason changes.
    fn failed(&self, number: usize, error: ReadError) {
        let mut state = self.state();
        let server = &mut state.servers[number];
        server.failures += 1;
        server.is_chain_checked = false;
        if server.failed.as_ref().is_none_or(|(before, _)| *before != error) {
            let name = self.servers[number].name();
            tracing::warn!(server = name, %error, "the RPC server gives no roots");
        }
        server.failed = Some((error, Instant::now()));
    }

    /// Takes over what the answers agree on; returns all roots if they changed.
    fn conclude(&self, answers: &[Answer], now: Instant) -> Option<Vec<Root>> {
        let mut state = self.state();
        if answers.len() > 1 {
            let agreement = agree(&state.known, answers);
            for (server, _) in answers {
                let differs = &mut state.servers[*server].differs;
                let since = differs.unwrap_or(now);
                *differs = agreement.outvoted.contains(server).then_some(since);
            }
            let since = state.tied.map_or(now, |tie| tie.since);
            state.tied = agreement.is_tied.then_some(Tie { since, compared: now });
            state.alone = None;
            state.provisional.clear();
            return self.take_over(state, &agreement.accepted, now);
        }
        let (server, roots) = answers.first()?;
        // A server that most others contradicted, or that was just tied with one that is silent
        // now, is not believed alone.
        if self.differs(&state.servers[*server], now)
            || state.tied.is_some_and(|tie| now.duration_since(tie.compared) < self.stale())
        {
            return None;
        }
        state.tied = None;
        if self.servers.len() == 1 {
            return self.take_over(state, roots, now);
        }
        self.hear_one(state, roots, now)
    }

    /// Hears one of several servers: it confirms known roots, and its new ones are provisional.
    fn hear_one(
        &self,
        mut state: MutexGuard<'_, FeedState>,
        roots: &[Root],
        now: Instant,
    ) -> Option<Vec<Root>> {
        let known = &state.known;
        let new: Vec<Root> = roots.iter().filter(|root| !known.contains(*root)).copied().collect();
        if new.is_empty() {
            state.alone = None;
            state.provisional.clear();
            return self.take_over(state, &[], now);
        }
        let since = *state.alone.get_or_insert(now);
        if now.duration_since(since) >= self.stale() {
            let mut provisional = Vec::with_capacity(PROVISIONAL_MAX);
            for root in new.iter().chain(&state.provisional) {
                if provisional.len() < PROVISIONAL_MAX && !provisional.contains(root) {
                    provisional.push(*root);
                }
            }
            state.provisional = provisional;
        }
        let confirms =
            roots.iter().any(|root| state.known.contains(root) || state.provisional.contains(root));
        if confirms { self.take_over(state, &[], now) } else { None }
    }

    fn take_over(
        &self,
        mut state: MutexGuard<'_, FeedState>,
        accepted: &[Root],
        now: Instant,
    ) -> Option<Vec<Root>> {
        state.refreshed = Some(now);
        let changed = merge(&mut state.known, accepted);
        let known = state.known.clone();
        let valid = [known.as_slice(), state.provisional.as_slice()].concat();
        drop(state);
        self.roots.replace(valid);
        changed.then_some(known)
    }

    /// Whether a server has reported other roots than the others for so long that it is named.
    fn differs(&self, server: &ServerState, now: Instant) -> bool {
        server.differs.is_some_and(|since| now.duration_since(since) >= self.patience())
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.limits.disagree_seconds)
    }

    fn stale(&self) -> Duration {
        Duration::from_secs(self.limits.stale_seconds)
    }

    /// The step at this moment, and what is said of it.
    fn step(&self, now: Instant) -> (Step, String) {
        let state = self.state();
        let count = state.known.len() + state.provisional.len();
        if state.tied.is_some_and(|tie| now.duration_since(tie.since) >= self.patience()) {
            let text = format!(
                "the RPC servers report different roots, the {count} they agreed on are used"
            );
            return (Step::Disagreeing, text);
        }
        let Some(refreshed) = state.refreshed else {
            let mut failed = state.servers.iter().zip(&self.servers);
            let why = failed.find_map(|(server, named)| {
                server.failed.as_ref().map(|(error, _)| format!("; {}: {error}", named.name()))
            });
            let why = why.unwrap_or_default();
            return if count == 0 {
                let contract = self.contract;
                (Step::None, format!("no roots are known, the contract is {contract}{why}"))
            } else {
                let text = format!("no RPC server answered yet, {count} roots are of the last run");
                (Step::Restored, text + &why)
            };
        };
        let age = now.duration_since(refreshed);
        if age >= self.stale() {
            let age = age.as_secs();
            let text = format!("no RPC server gave roots for {age} s, the last {count} are used");
            return (Step::Stale, text);
        }
        if count == 0 {
            return (Step::None, format!("{} has no members", self.contract));
        }
        if state.alone.is_some_and(|since| now.duration_since(since) >= self.patience()) {
            let (all, new) = (self.servers.len(), state.provisional.len());
            let text = format!(
                "one of {all} RPC servers answers alone; {new} of its new roots are used, beside \
                 {} that more confirmed",
                state.known.len()
            );
            return (Step::Disagreeing, text);
        }
        (Step::Current, String::new())
    }

    /// Why messages of all members cannot be checked, if that is so.
    pub(crate) fn trouble(&self) -> Option<String> {
        let (step, why) = self.step(Instant::now());
        (step != Step::Current).then_some(why)
    }

    fn log_step(&self) {
        let (step, why) = self.step(Instant::now());
        let before = self.state().logged.replace(step);
        if before == Some(step) {
            return;
        }
        if step == Step::Current {
            tracing::info!(contract = %self.contract, "the roots are current");
        } else {
            tracing::warn!(%why, "the roots are not current");
        }
    }

    /// The figures of this moment.
    pub(crate) fn report(&self) -> RootsReport {
        let now = Instant::now();
        let (step, detail) = self.step(now);
        let state = self.state();
        let servers = state.servers.iter().zip(&self.servers).map(|(server, named)| ServerReport {
            server: named.name().to_owned(),
            answers: server.answers,
            failures: server.failures,
            disagrees: self.differs(server, now),
            error: server.failed.as_ref().map(|(error, _)| error.to_string()),
        });
        RootsReport {
            step,
            detail,
            contract: self.contract.to_string(),
            roots: state.known.len() + state.provisional.len(),
            refreshes: state.refreshes,
            age_seconds: state.refreshed.map(|at| now.duration_since(at).as_secs_f64()),
            servers: servers.collect(),
            membership: self.membership.clone(),
        }
    }
}

#[cfg(test)]
#[path = "contract_tests.rs"]
mod tests;
