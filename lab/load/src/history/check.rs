//! The checker: rules that a history must satisfy under all faults of the net.
//!
//! The canisters are chosen so that the final state determines which calls happened and in which
//! order. Every append has a page of its own, and a canister numbers its writes: the *generation*
//! on a page is the place of its write in the canister's order. So, for every canister:
//!
//! 1. *Nothing acknowledged is lost*: on every node, the page of every acknowledged append carries
//!    the generation that was acknowledged.
//! 2. *Nothing runs twice, nothing is invented*: the generations on the pages are exactly 1 to the
//!    number of writes, each on the page of a call that was sent and was not rejected. (A write
//!    that ran twice leaves its first generation on no page.)
//! 3. *Order*: a call that was sent after another one was acknowledged comes after it, for any two
//!    clients; so it does for one client's calls. (Together with 1 and 2 this is linearizability of
//!    the appends.)
//! 4. *Reads*: every read saw the state as it was after some number of writes, all of it: the final
//!    state without the later generations. A certified read saw all writes acknowledged before it
//!    was sent; no read saw a write that was sent after the read was answered.
//! 5. *Counters*: acknowledged counts are different and in order; those in between belong to calls
//!    of unknown outcome that were in flight early enough; the number of calls from canister to
//!    canister that arrived is at least that of the acknowledged and at most that of the sent ones.
//! 6. *Nodes agree*: all nodes hold the same in the end, and whenever two certificates have the
//!    same time they sign the same root.
//! 7. *Progress*: after healing, an update through every endpoint was acknowledged within the
//!    limit.
//!
//! The checker reads only the history, and every rule has a test with a made-up history that breaks
//! it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use super::lines::{Call, CallKind, ClientRead, Final, Header, Line, Outcome, Progress, Run};

/// Texts kept of each rule; the rest is counted.
const TEXTS_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Rule {
    Lost,
    Twice,
    MadeUp,
    Order,
    Read,
    Disagreement,
    Roots,
    Stuck,
    Certificate,
    Incomplete,
}

impl Rule {
    fn description(self) -> &'static str {
        match self {
            Self::Lost => "acknowledged updates lost",
            Self::Twice => "updates that ran twice",
            Self::MadeUp => "effects of no call",
            Self::Order => "order that contradicts time",
            Self::Read => "reads of a state that never was",
            Self::Disagreement => "nodes that disagree",
            Self::Roots => "different roots at one height",
            Self::Stuck => "no progress after healing",
            Self::Certificate => "wrong certificates",
            Self::Incomplete => "not enough to judge",
        }
    }
}

/// How often a rule was broken, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Broken {
    /// How often it was broken, also where no text was kept.
    pub(super) count: u64,
    /// Descriptions of the first few.
    pub(super) texts: Vec<String>,
}

impl Broken {
    fn add(&mut self, text: fmt::Arguments<'_>) {
        self.count += 1;
        if self.texts.len() < TEXTS_MAX {
            self.texts.push(text.to_string());
        }
    }
}

/// The checks and their results.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Verdict {
    pub(super) calls: u64,
    /// Of them, acknowledged with a verified certificate.
    pub(super) acknowledged: u64,
    /// Rejected for certain.
    pub(super) rejected: u64,
    /// Of unknown outcome.
    pub(super) unknown: u64,
    /// Of those, the appends that did happen.
    pub(super) unknown_done: u64,
    /// Reads through consensus.
    pub(super) reads_certified: u64,
    /// Reads from one node.
    pub(super) reads_queried: u64,
    /// Pages compared, over all nodes.
    pub(super) pages_compared: u64,
    /// Times at which two nodes or more showed a certificate.
    pub(super) heights_compared: u64,
    /// Times at which any did.
    pub(super) heights_seen: u64,
    pub(super) faults: u64,
    /// Longest from healing to an acknowledged update, over the endpoints, in milliseconds.
    pub(super) progress_millis: Option<u64>,
    pub(super) unreadable: u64,
    pub(super) broken: BTreeMap<Rule, Broken>,
}

impl Verdict {
    fn broken(&mut self, rule: Rule) -> &mut Broken {
        self.broken.entry(rule).or_default()
    }

    pub(super) fn is_good(&self) -> bool {
        self.broken.is_empty()
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "history: {} calls: {} acknowledged, {} rejected, {} of unknown outcome ({} of their appends happened)\n\
             history: {} certified reads, {} queries; {} faults\n\
             history: {} pages compared on all nodes; roots at {} heights, {} of them from several nodes\n",
            self.calls,
            self.acknowledged,
            self.rejected,
            self.unknown,
            self.unknown_done,
            self.reads_certified,
            self.reads_queried,
            self.faults,
            self.pages_compared,
            self.heights_seen,
            self.heights_compared,
        );
        if let Some(millis) = self.progress_millis {
            text.push_str(&format!(
                "history: progress through every endpoint {millis} ms after healing\n"
            ));
        }
        for (rule, broken) in &self.broken {
            text.push_str(&format!("BROKEN: {}: {}\n", rule.description(), broken.count));
            for line in &broken.texts {
                text.push_str(&format!("  {line}\n"));
            }
        }
        text.push_str(if self.is_good() {
            "history: nothing is broken\n"
        } else {
            "history: BROKEN\n"
        });
        text
    }
}

/// Checks every rule; `unreadable` counts the lines of the history that were skipped.
pub(super) fn check(lines: &[Line], unreadable: u64) -> Verdict {
    let mut verdict = Verdict { unreadable, ..Verdict::default() };
    let mut history = History::default();
    for line in lines {
        match line {
            Line::Header(header) => history.header = Some(header),
            Line::Call(call) => history.calls.push(call),
            Line::Read(read) => history.reads.push(read),
            Line::Fault(_) => verdict.faults += 1,
            Line::Progress(progress) => history.progress.push(progress),
            Line::Final(last) => history.finals.push(last),
            Line::Root(root) => history.roots.push((root.endpoint, root.time, &root.root)),
        }
    }
    let Some(header) = history.header else {
        verdict.broken(Rule::Incomplete).add(format_args!("the history has no header"));
        return verdict;
    };
    history.calls.sort_by_key(|call| call.sent_micros);
    count(&mut verdict, &history);
    let states = states(&mut verdict, header, &history);
    for (canister, state) in states.iter().enumerate() {
        if let Some(state) = state {
            appends(&mut verdict, &history, canister, state);
            reads(&mut verdict, &history, canister, state);
            counts(&mut verdict, &history, canister, state);
        }
    }
    hops(&mut verdict, &history, &states);
    roots(&mut verdict, header, &history);
    progress(&mut verdict, header, &history);
    verdict
}

#[derive(Default)]
struct History<'a> {
    header: Option<&'a Header>,
    /// In the order of sending.
    calls: Vec<&'a Call>,
    reads: Vec<&'a ClientRead>,
    finals: Vec<&'a Final>,
    progress: Vec<&'a Progress>,
    /// Endpoint, time, root.
    roots: Vec<(usize, u64, &'a String)>,
}

/// A canister in the end.
struct State {
    count: u64,
    hops: u64,
    generation: u64,
    /// Page to generation; pages that were never written are not in it.
    pages: BTreeMap<u64, u64>,
}

fn count(verdict: &mut Verdict, history: &History) {
    verdict.calls = history.calls.len() as u64;
    for call in &history.calls {
        match &call.outcome {
            Outcome::Acknowledged { .. } => verdict.acknowledged += 1,
            Outcome::Rejected { .. } => verdict.rejected += 1,
            Outcome::Unknown { .. } => verdict.unknown += 1,
            Outcome::Wrong { text } => {
                verdict.broken(Rule::Certificate).add(format_args!("call {}: {text}", call.id));
            }
        }
    }
    for read in &history.reads {
        match read.certified {
            true => verdict.reads_certified += 1,
            false => verdict.reads_queried += 1,
        }
    }
    if verdict.acknowledged == 0 {
        verdict
            .broken(Rule::Incomplete)
            .add(format_args!("no call was acknowledged: there is nothing that could be lost"));
    }
}

/// Pages of runs, without those that were never written.
fn pages(runs: &[Run], first: u64, count: u64) -> BTreeMap<u64, u64> {
    let mut pages = BTreeMap::new();
    for (index, &(from, generation)) in runs.iter().enumerate() {
        let to = runs.get(index + 1).map_or(first + count, |next| next.0);
        if generation > 0 {
            pages.extend((from..to.min(first + count)).map(|page| (page, generation)));
        }
    }
    pages
}

/// The final state of every canister, if the nodes agree on it; otherwise that of the first node.
fn states(verdict: &mut Verdict, header: &Header, history: &History) -> Vec<Option<State>> {
    let mut states = Vec::new();
    for canister in 0..header.canisters.len() {
        let mut first: Option<(usize, State)> = None;
        for endpoint in 0..header.endpoints.len() {
            let of = |last: &&&Final| last.canister == canister && last.endpoint == endpoint;
            let parts: Vec<&&Final> = history.finals.iter().filter(of).collect();
            let queried: Vec<&&&Final> = parts.iter().filter(|part| !part.certified).collect();
            let Some(last) = queried.last() else {
                verdict.broken(Rule::Incomplete).add(format_args!(
                    "what endpoint {endpoint} holds of canister {canister} in the end is not \
                     known"
                ));
                continue;
            };
            // Zero is a page that was never written.
            let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
            for part in &parts {
                let written = pages(&part.runs, part.first, part.pages);
                verdict.pages_compared += part.pages;
                for page in part.first..part.first + part.pages {
                    let now = written.get(&page).copied().unwrap_or(0);
                    // Pages read twice, through consensus and from the node, must be equal.
                    if let Some(before) = seen.insert(page, now).filter(|before| *before != now) {
                        verdict.broken(Rule::Disagreement).add(format_args!(
                            "endpoint {endpoint}, canister {canister}, page {page}: write \
                             {before} in one read, {now} in another"
                        ));
                    }
                }
            }
            seen.retain(|_, generation| *generation > 0);
            let state = State {
                count: last.count,
                hops: last.hops,
                generation: last.generation,
                pages: seen,
            };
            lost(verdict, history, canister, endpoint, &state);
            match &first {
                None => first = Some((endpoint, state)),
                Some((other, reference)) => {
                    differences(verdict, canister, (*other, reference), (endpoint, &state));
                }
            }
        }
        states.push(first.map(|(_, state)| state));
    }
    states
}

/// Rule 6, states: what two endpoints hold of a canister.
fn differences(
    verdict: &mut Verdict,
    canister: usize,
    (other, reference): (usize, &State),
    (endpoint, state): (usize, &State),
) {
    for (what, one, two) in [
        ("count", reference.count, state.count),
        ("calls that arrived", reference.hops, state.hops),
        ("generation", reference.generation, state.generation),
    ] {
        if one != two {
            verdict.broken(Rule::Disagreement).add(format_args!(
                "canister {canister}, {what}: {one} on endpoint {other}, {two} on endpoint \
                 {endpoint}"
            ));
        }
    }
    let all: BTreeSet<&u64> = reference.pages.keys().chain(state.pages.keys()).collect();
    for page in all {
        let (one, two) = (reference.pages.get(page), state.pages.get(page));
        if one != two {
            verdict.broken(Rule::Disagreement).add(format_args!(
                "canister {canister}, page {page}: generation {one:?} on endpoint {other}, {two:?} \
                 on endpoint {endpoint}"
            ));
        }
    }
}

/// Rule 1, on one node.
fn lost(verdict: &mut Verdict, history: &History, canister: usize, endpoint: usize, state: &State) {
    for call in history.calls.iter().filter(|call| call.canister == canister) {
        let (CallKind::Append { page }, Outcome::Acknowledged { value, .. }) =
            (call.work, &call.outcome)
        else {
            continue;
        };
        match state.pages.get(&page) {
            Some(generation) if generation == value => {}
            // It was written again, over itself: reported by the rule for that.
            Some(generation) if generation > value => {
                verdict.broken(Rule::Twice).add(format_args!(
                    "call {} (canister {canister}, page {page}) was acknowledged as write {value} \
                     and is there as write {generation} on endpoint {endpoint}",
                    call.id
                ))
            }
            other => verdict.broken(Rule::Lost).add(format_args!(
                "call {} (canister {canister}, page {page}) was acknowledged as write \
                 {value}; endpoint {endpoint} has {other:?}",
                call.id
            )),
        }
    }
}

/// Rules 2 and 3.
fn appends(verdict: &mut Verdict, history: &History, canister: usize, state: &State) {
    let mut callers: BTreeMap<u64, &Call> = BTreeMap::new();
    for call in history.calls.iter().filter(|call| call.canister == canister) {
        if let CallKind::Append { page } = call.work {
            callers.insert(page, call);
        }
    }
    let mut pages_of: BTreeMap<u64, u64> = BTreeMap::new();
    for (&page, &generation) in &state.pages {
        if let Some(other) = pages_of.insert(generation, page) {
            verdict.broken(Rule::MadeUp).add(format_args!(
                "canister {canister}: pages {other} and {page} are both of write {generation}"
            ));
        }
        match callers.get(&page).map(|call| (call, &call.outcome)) {
            None => verdict.broken(Rule::MadeUp).add(format_args!(
                "canister {canister}, page {page}: write {generation} is of no call"
            )),
            Some((call, Outcome::Rejected { text })) => {
                verdict.broken(Rule::MadeUp).add(format_args!(
                    "canister {canister}, page {page}: call {} was rejected ({text}) and wrote \
                     all the same",
                    call.id
                ))
            }
            Some((_, Outcome::Unknown { .. })) => verdict.unknown_done += 1,
            Some(_) => {}
        }
    }
    // Where the page that should have it is known, its loss was already reported.
    let told: BTreeSet<u64> = callers
        .values()
        .filter_map(|call| match call.outcome {
            Outcome::Acknowledged { value, .. } => Some(value),
            _ => None,
        })
        .collect();
    for generation in 1..=state.generation {
        if !pages_of.contains_key(&generation) && !told.contains(&generation) {
            verdict.broken(Rule::Twice).add(format_args!(
                "canister {canister}: write {generation} is on no page: a call ran twice, and \
                 its second run wrote over the first"
            ));
        }
    }
    if let Some((generation, page)) = pages_of.range(state.generation + 1..).next() {
        verdict.broken(Rule::MadeUp).add(format_args!(
            "canister {canister}, page {page}: write {generation}, of a canister that says it \
             has seen {}",
            state.generation
        ));
    }
    // When the client knows nothing, the state does.
    let placed = callers.values().filter_map(|call| {
        let CallKind::Append { page } = call.work else { return None };
        match call.outcome {
            Outcome::Acknowledged { value, .. } => Some((*call, value)),
            _ => state.pages.get(&page).map(|generation| (*call, *generation)),
        }
    });
    order(verdict, canister, "write", placed.collect());
}

/// A call sent after another was acknowledged has the higher place.
fn order(verdict: &mut Verdict, canister: usize, what: &str, mut placed: Vec<(&Call, u64)>) {
    placed.sort_by_key(|(call, _)| call.sent_micros);
    let mut ended: Vec<(&Call, u64)> = placed
        .iter()
        .copied()
        .filter(|(call, _)| matches!(call.outcome, Outcome::Acknowledged { .. }))
        .collect();
    ended.sort_by_key(|(call, _)| call.ended_micros);
    let mut ended = ended.into_iter().peekable();
    let mut highest: Option<(&Call, u64)> = None;
    for (call, place) in placed {
        while let Some((before, at)) =
            ended.next_if(|(before, _)| before.ended_micros < call.sent_micros)
        {
            if highest.is_none_or(|(_, highest)| at > highest) {
                highest = Some((before, at));
            }
        }
        if let Some((before, at)) = highest.filter(|(_, at)| *at >= place) {
            verdict.broken(Rule::Order).add(format_args!(
                "canister {canister}: call {} is {what} {place} although it was sent {} us \
                 after call {}, {what} {at}, was acknowledged",
                call.id,
                call.sent_micros - before.ended_micros,
                before.id
            ));
        }
    }
}

/// Checks rule 4 for one canister: every read saw a state that was there.
fn reads(verdict: &mut Verdict, history: &History, canister: usize, state: &State) {
    // Acknowledged appends by the time at which they were known, with the highest generation so
    // far; and all appends by sending, with the lowest from there on.
    let mut known: Vec<(u64, u64)> = Vec::new();
    let mut sent: Vec<(u64, u64)> = Vec::new();
    for call in history.calls.iter().filter(|call| call.canister == canister) {
        let CallKind::Append { page } = call.work else { continue };
        match call.outcome {
            Outcome::Acknowledged { value, .. } => {
                known.push((call.ended_micros, value));
                sent.push((call.sent_micros, value));
            }
            _ => sent
                .extend(state.pages.get(&page).map(|generation| (call.sent_micros, *generation))),
        }
    }
    known.sort_unstable();
    let mut highest = 0;
    for (_, generation) in &mut known {
        highest = highest.max(*generation);
        *generation = highest;
    }
    sent.sort_unstable();
    let mut lowest = u64::MAX;
    for (_, generation) in sent.iter_mut().rev() {
        lowest = lowest.min(*generation);
        *generation = lowest;
    }
    for read in history.reads.iter().filter(|read| read.canister == canister) {
        let name = if read.certified { "certified read" } else { "query" };
        let who = || {
            format!(
                "a {name} of client {} at endpoint {}, canister {canister}",
                read.client, read.endpoint
            )
        };
        let before = known.partition_point(|(ended, _)| *ended < read.sent_micros);
        let floor = known[..before].last().map_or(0, |(_, generation)| *generation);
        if read.certified && read.generation < floor {
            verdict.broken(Rule::Read).add(format_args!(
                "{}: it saw {} writes when write {floor} had been acknowledged",
                who(),
                read.generation
            ));
        }
        let after = sent.partition_point(|(sent, _)| *sent <= read.ended_micros);
        if let Some((_, generation)) =
            sent.get(after).filter(|(_, generation)| *generation <= read.generation)
        {
            verdict.broken(Rule::Read).add(format_args!(
                "{}: it saw {} writes when write {generation} had not been sent",
                who(),
                read.generation
            ));
        }
        let saw = pages(&read.runs, read.first, read.pages);
        for page in read.first..read.first + read.pages {
            let was = state.pages.get(&page).filter(|generation| **generation <= read.generation);
            if saw.get(&page) != was {
                verdict.broken(Rule::Read).add(format_args!(
                    "{}, page {page}: it saw write {:?} where the state after {} writes has \
                     {was:?}",
                    who(),
                    saw.get(&page),
                    read.generation
                ));
                break;
            }
        }
    }
}

/// Rule 5, counters.
fn counts(verdict: &mut Verdict, history: &History, canister: usize, state: &State) {
    let calls: Vec<&Call> = history
        .calls
        .iter()
        .copied()
        .filter(|call| call.canister == canister && call.work == CallKind::Count)
        .collect();
    let mut known: BTreeMap<u64, &Call> = BTreeMap::new();
    let mut open: Vec<u64> = Vec::new();
    for call in &calls {
        match call.outcome {
            Outcome::Acknowledged { value, .. } => {
                if value > state.count {
                    verdict.broken(Rule::Lost).add(format_args!(
                        "call {} was acknowledged with count {value}; canister {canister} \
                         stands at {}",
                        call.id, state.count
                    ));
                }
                if let Some(other) = known.insert(value, call) {
                    verdict.broken(Rule::Lost).add(format_args!(
                        "calls {} and {} were both acknowledged with count {value} of \
                         canister {canister}",
                        other.id, call.id
                    ));
                }
            }
            Outcome::Unknown { .. } => open.push(call.sent_micros),
            _ => {}
        }
    }
    order(verdict, canister, "count", known.iter().map(|(value, call)| (*call, *value)).collect());
    // Unacknowledged counts belong to calls of unknown outcome that had been sent before a higher
    // count was acknowledged. Such a deadline never falls from one count to the next, so the call
    // that was sent first may as well have had the lowest.
    open.sort_unstable();
    let mut open = open.into_iter();
    let mut deadlines: Vec<(u64, u64)> = Vec::new();
    let mut deadline = u64::MAX;
    for value in (1..=state.count).rev() {
        match known.get(&value) {
            Some(call) => deadline = deadline.min(call.ended_micros),
            None => deadlines.push((value, deadline)),
        }
    }
    for (value, deadline) in deadlines.into_iter().rev() {
        match open.next() {
            Some(sent) if sent < deadline => {}
            Some(_) => verdict.broken(Rule::MadeUp).add(format_args!(
                "canister {canister}: no call that could have had count {value} had been sent \
                 when a higher one was acknowledged"
            )),
            None => verdict.broken(Rule::Twice).add(format_args!(
                "canister {canister}: count {value} is of no call: one was counted twice"
            )),
        }
    }
}

/// Rule 5, calls between canisters.
fn hops(verdict: &mut Verdict, history: &History, states: &[Option<State>]) {
    if states.iter().any(Option::is_none) {
        return;
    }
    let arrived: u64 = states.iter().flatten().map(|state| state.hops).sum();
    let (mut acknowledged, mut open) = (0, 0);
    for call in &history.calls {
        let CallKind::Chain { depth } = call.work else { continue };
        match call.outcome {
            Outcome::Acknowledged { value, .. } => {
                acknowledged += depth;
                if value != depth {
                    verdict.broken(Rule::Lost).add(format_args!(
                        "call {}: of {depth} calls from canister to canister {value} were \
                         answered",
                        call.id
                    ));
                }
            }
            // A chain that was rejected may have gone some of its way.
            Outcome::Rejected { .. } | Outcome::Unknown { .. } => open += depth,
            Outcome::Wrong { .. } => open += depth,
        }
    }
    if arrived < acknowledged {
        verdict.broken(Rule::Lost).add(format_args!(
            "{acknowledged} calls from canister to canister were acknowledged, {arrived} \
             arrived"
        ));
    }
    if arrived > acknowledged + open {
        verdict.broken(Rule::Twice).add(format_args!(
            "{arrived} calls from canister to canister arrived; {acknowledged} were \
             acknowledged and {open} are of unknown outcome"
        ));
    }
}

/// Rule 6, roots.
fn roots(verdict: &mut Verdict, header: &Header, history: &History) {
    let mut seen: BTreeMap<u64, BTreeMap<&String, BTreeSet<usize>>> = BTreeMap::new();
    for (endpoint, time, root) in &history.roots {
        seen.entry(*time).or_default().entry(root).or_default().insert(*endpoint);
    }
    for call in &history.calls {
        if let Outcome::Acknowledged { time, root, endpoint, .. } = &call.outcome {
            seen.entry(*time).or_default().entry(root).or_default().insert(*endpoint);
        }
    }
    verdict.heights_seen = seen.len() as u64;
    for (time, roots) in &seen {
        let endpoints: BTreeSet<&usize> = roots.values().flatten().collect();
        verdict.heights_compared += u64::from(endpoints.len() > 1);
        if roots.len() > 1 {
            let roots: Vec<String> = roots
                .iter()
                .map(|(root, endpoints)| format!("{root} from endpoints {endpoints:?}"))
                .collect();
            let roots = roots.join(", ");
            verdict.broken(Rule::Roots).add(format_args!("at time {time}: {roots}"));
        }
    }
    if header.endpoints.len() > 1 && verdict.heights_compared == 0 {
        verdict
            .broken(Rule::Incomplete)
            .add(format_args!("no two nodes showed a certificate of the same height"));
    }
}

/// Checks rule 7: through every endpoint an update was acknowledged within the limit.
fn progress(verdict: &mut Verdict, header: &Header, history: &History) {
    for endpoint in 0..header.endpoints.len() {
        let Some(progress) =
            history.progress.iter().rfind(|progress| progress.endpoint == endpoint)
        else {
            verdict
                .broken(Rule::Incomplete)
                .add(format_args!("whether endpoint {endpoint} makes progress is not known"));
            continue;
        };
        let took = progress.acknowledged_micros.map(|at| at.saturating_sub(progress.healed_micros));
        match took {
            Some(took) if took <= progress.limit_micros => {
                verdict.progress_millis = verdict.progress_millis.max(Some(took / 1000));
            }
            other => {
                let took =
                    other.map_or("never".to_owned(), |took| format!("after {} ms", took / 1000));
                verdict.broken(Rule::Stuck).add(format_args!(
                    "endpoint {endpoint}: an update was acknowledged {took}; the limit is {} ms \
                     ({})",
                    progress.limit_micros / 1000,
                    progress.text
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::lines::{FORMAT, Root},
        *,
    };

    fn acknowledged(value: u64, time: u64) -> Outcome {
        Outcome::Acknowledged { value, time, root: format!("root{time}"), endpoint: 0 }
    }

    fn unknown() -> Outcome {
        Outcome::Unknown { text: "the node was killed".into() }
    }

    fn call(id: u64, work: CallKind, sent: u64, ended: u64, outcome: Outcome) -> Line {
        Line::Call(Call {
            id,
            client: (id % 2) as usize,
            canister: 0,
            work,
            sent_micros: sent,
            ended_micros: ended,
            attempts: 1,
            outcome,
        })
    }

    fn append(id: u64, page: u64, sent: u64, ended: u64, outcome: Outcome) -> Line {
        call(id, CallKind::Append { page }, sent, ended, outcome)
    }

    fn last(endpoint: usize) -> Final {
        Final {
            endpoint,
            canister: 0,
            certified: false,
            count: 3,
            hops: 2,
            generation: 4,
            first: 0,
            pages: 6,
            // Page 3 was never written: its call was rejected.
            runs: vec![(0, 1), (1, 2), (2, 3), (3, 0), (4, 4), (5, 0)],
        }
    }

    fn read(certified: bool, sent: u64, ended: u64, generation: u64, runs: &[Run]) -> Line {
        Line::Read(ClientRead {
            client: 7,
            endpoint: 1,
            canister: 0,
            certified,
            sent_micros: sent,
            ended_micros: ended,
            generation,
            first: 0,
            pages: 6,
            runs: runs.to_vec(),
        })
    }

    fn progress_line(endpoint: usize, acknowledged_micros: Option<u64>) -> Line {
        Line::Progress(Progress {
            endpoint,
            healed_micros: 1000,
            acknowledged_micros,
            limit_micros: 500,
            text: "x".into(),
        })
    }

    /// Two nodes, one canister, every sort of line, nothing wrong.
    fn good() -> Vec<Line> {
        vec![
            Line::Header(Header {
                format: FORMAT,
                endpoints: vec!["a".into(), "b".into()],
                canisters: vec!["c".into()],
                clients: 2,
                pages: 6,
                ..Header::default()
            }),
            append(0, 0, 10, 20, acknowledged(1, 5)),
            append(1, 1, 15, 40, acknowledged(2, 6)),
            // Its outcome is unknown; it did happen.
            append(2, 2, 30, 90, unknown()),
            append(3, 3, 31, 60, Outcome::Rejected { text: "no".into() }),
            append(4, 4, 50, 70, acknowledged(4, 7)),
            // It did not happen.
            append(5, 5, 51, 99, unknown()),
            call(6, CallKind::Count, 10, 20, acknowledged(1, 5)),
            call(7, CallKind::Count, 12, 90, unknown()),
            call(8, CallKind::Count, 30, 40, acknowledged(3, 6)),
            call(9, CallKind::Chain { depth: 2 }, 30, 40, acknowledged(2, 6)),
            read(true, 45, 55, 3, &[(0, 1), (1, 2), (2, 3), (3, 0)]),
            // A query may be late.
            read(false, 80, 81, 1, &[(0, 1), (1, 0)]),
            Line::Fault(super::super::lines::Fault { at_micros: 33, text: "kill 1".into() }),
            progress_line(0, Some(1200)),
            progress_line(1, Some(1400)),
            Line::Final(last(0)),
            Line::Final(last(1)),
            Line::Final(Final { certified: true, ..last(1) }),
            Line::Root(Root { endpoint: 0, time: 8, root: "same".into() }),
            Line::Root(Root { endpoint: 1, time: 8, root: "same".into() }),
        ]
    }

    fn broken(lines: &[Line]) -> Vec<Rule> {
        check(lines, 0).broken.into_keys().collect()
    }

    /// A history that differs from the good one in the line that `find` finds.
    fn with(find: impl Fn(&Line) -> bool, change: impl Fn(&mut Line)) -> Vec<Line> {
        let mut lines = good();
        let found: Vec<&mut Line> = lines.iter_mut().filter(|line| find(line)).collect();
        assert!(!found.is_empty(), "the change changes nothing");
        found.into_iter().for_each(change);
        lines
    }

    fn with_call(id: u64, change: impl Fn(&mut Call)) -> Vec<Line> {
        with(
            |line| matches!(line, Line::Call(call) if call.id == id),
            |line| {
                if let Line::Call(call) = line {
                    change(call);
                }
            },
        )
    }

    /// In what the given endpoints hold.
    fn with_final(endpoints: &[usize], change: impl Fn(&mut Final)) -> Vec<Line> {
        with(
            |line| matches!(line, Line::Final(last) if endpoints.contains(&last.endpoint)),
            |line| {
                if let Line::Final(last) = line {
                    change(last);
                }
            },
        )
    }

    fn without(find: impl Fn(&Line) -> bool) -> Vec<Line> {
        let lines: Vec<Line> = good().into_iter().filter(|line| !find(line)).collect();
        assert!(lines.len() < good().len(), "nothing is left out");
        lines
    }

    #[test]
    fn a_good_history_is_good_and_counted() {
        let verdict = check(&good(), 0);
        assert!(verdict.is_good(), "{}", verdict.text());
        assert_eq!(
            (verdict.calls, verdict.acknowledged, verdict.rejected, verdict.unknown),
            (10, 6, 1, 3)
        );
        assert_eq!(
            (verdict.unknown_done, verdict.reads_certified, verdict.reads_queried),
            (1, 1, 1)
        );
        assert_eq!((verdict.heights_seen, verdict.heights_compared, verdict.faults), (4, 1, 1));
        assert_eq!((verdict.pages_compared, verdict.progress_millis), (18, Some(0)));
        assert!(verdict.text().ends_with("nothing is broken\n"));
    }

    #[test]
    fn an_acknowledged_append_that_is_gone_is_lost() {
        // On all nodes, on one, by a write of another client in its place.
        let gone = |last: &mut Final| last.runs[1] = (1, 0);
        assert_eq!(broken(&with_final(&[0, 1], gone)), [Rule::Lost, Rule::Read]);
        let verdict = check(&with_final(&[1], gone), 0);
        assert_eq!(
            verdict.broken.keys().copied().collect::<Vec<_>>(),
            [Rule::Lost, Rule::Disagreement]
        );
        assert!(verdict.text().contains("endpoint 1 has None"), "{}", verdict.text());
        // Acknowledged as a write whose number the canister has not reached.
        let ahead = with_call(4, |call| call.outcome = acknowledged(5, 7));
        assert!(broken(&ahead).contains(&Rule::Lost));
    }

    #[test]
    fn repeated_update_is_reported() {
        // Call 0 ran as write 1 and again as write 5.
        let twice = |last: &mut Final| {
            last.runs[0] = (0, 5);
            last.generation = 5;
        };
        let verdict = check(&with_final(&[0, 1], twice), 0);
        assert!(verdict.broken.contains_key(&Rule::Twice), "{}", verdict.text());
        // Call 2, of unknown outcome: its first run, write 3, was overwritten by its second, write
        // 5.
        let twice = |last: &mut Final| {
            last.runs[2] = (2, 5);
            last.generation = 5;
        };
        let verdict = check(&with_final(&[0, 1], twice), 0);
        assert!(verdict.text().contains("write 3 is on no page"), "{}", verdict.text());
        // One count more than calls.
        assert_eq!(broken(&with_final(&[0, 1], |last| last.count = 4)), [Rule::Twice]);
        // A chain's calls.
        assert_eq!(broken(&with_final(&[0, 1], |last| last.hops = 3)), [Rule::Twice]);
    }

    #[test]
    fn effect_without_a_call_is_reported() {
        let page_of_nobody = |last: &mut Final| {
            last.pages = 7;
            last.runs.push((6, 5));
            last.generation = 5;
        };
        assert_eq!(broken(&with_final(&[0, 1], page_of_nobody)), [Rule::MadeUp]);
        let rejected = |last: &mut Final| {
            last.runs[3] = (3, 5);
            last.generation = 5;
        };
        assert_eq!(broken(&with_final(&[0, 1], rejected)), [Rule::MadeUp]);
        // Write 4 twice.
        assert!(broken(&with_final(&[0, 1], |last| last.runs[5] = (5, 4))).contains(&Rule::MadeUp));
        // A write that the canister has not seen.
        assert!(broken(&with_final(&[0, 1], |last| last.runs[5] = (5, 9))).contains(&Rule::MadeUp));
    }

    #[test]
    fn effects_out_of_real_time_order_are_reported() {
        // Call 4 is write 4 and was sent at 50; now call 1, write 2, is sent after call 4 was
        // acknowledged.
        let late = with_call(1, |call| (call.sent_micros, call.ended_micros) = (80, 85));
        assert!(broken(&late).contains(&Rule::Order), "{:?}", broken(&late));
        // The same of a call of unknown outcome, whose place only the state knows.
        let late = with_call(2, |call| call.sent_micros = 75);
        assert!(broken(&late).contains(&Rule::Order));
        // Overlapping calls may come in any order.
        assert_eq!(broken(&with_call(1, |call| call.ended_micros = 98)), []);
        // Counts.
        let late = with_call(6, |call| (call.sent_micros, call.ended_micros) = (41, 45));
        assert_eq!(broken(&late), [Rule::Order]);
    }

    #[test]
    fn reads_see_a_state_that_was() {
        let with_read = |certified: bool, change: &dyn Fn(&mut ClientRead)| {
            broken(&with(
                |line| matches!(line, Line::Read(read) if read.certified == certified),
                |line| {
                    if let Line::Read(read) = line {
                        change(read);
                    }
                },
            ))
        };
        // Write 2 was acknowledged at 40, the read was sent at 45.
        let old = |read: &mut ClientRead| {
            read.generation = 1;
            read.runs = vec![(0, 1), (1, 0)];
        };
        assert_eq!(with_read(true, &old), [Rule::Read]);
        assert_eq!(with_read(false, &old), []);
        // A write that was lost between the read and the end; one that was not there yet; one that
        // is missing.
        for runs in [
            vec![(0, 1), (1, 2), (2, 3), (3, 1)],
            vec![(0, 1), (1, 2), (2, 4), (3, 0)],
            vec![(0, 1), (1, 0)],
        ] {
            assert_eq!(with_read(true, &|read| read.runs = runs.clone()), [Rule::Read], "{runs:?}");
        }
        // Write 4 was sent at 50.
        let future = |read: &mut ClientRead| {
            (read.sent_micros, read.ended_micros, read.generation) = (45, 49, 4);
            read.runs = vec![(0, 1), (1, 2), (2, 3), (3, 0), (4, 4), (5, 0)];
        };
        assert_eq!(with_read(true, &future), [Rule::Read]);
        assert_eq!(with_read(false, &future), [Rule::Read]);
    }

    #[test]
    fn counters_are_checked_like_registers() {
        assert_eq!(broken(&with_final(&[0, 1], |last| last.count = 2)), [Rule::Lost]);
        assert!(
            broken(&with_call(8, |call| call.outcome = acknowledged(1, 6))).contains(&Rule::Lost)
        );
        // Count 2 is missing, and the only call that could have had it was sent after count 3 was
        // acknowledged.
        assert_eq!(broken(&with_call(7, |call| call.sent_micros = 41)), [Rule::MadeUp]);
        assert_eq!(
            broken(&with_call(7, |call| call.outcome = Outcome::Rejected { text: String::new() })),
            [Rule::Twice]
        );
        assert_eq!(broken(&with_final(&[0, 1], |last| last.hops = 1)), [Rule::Lost]);
        assert_eq!(broken(&with_call(9, |call| call.outcome = acknowledged(1, 6))), [Rule::Lost]);
    }

    #[test]
    fn diverging_nodes_are_reported() {
        for change in [
            (|last: &mut Final| last.count = 4) as fn(&mut Final),
            |last| last.hops = 3,
            |last| last.generation = 5,
        ] {
            assert_eq!(broken(&with_final(&[1], change)), [Rule::Disagreement]);
        }
        // One node's certified read against its own state.
        let lines = with(
            |line| matches!(line, Line::Final(last) if last.certified),
            |line| {
                if let Line::Final(last) = line {
                    last.runs[2] = (2, 0);
                }
            },
        );
        assert_eq!(broken(&lines), [Rule::Disagreement]);
    }

    #[test]
    fn two_roots_at_one_time_are_reported() {
        let root = |endpoint, root: &'static str| {
            with(
                move |line| matches!(line, Line::Root(line) if line.endpoint == endpoint),
                move |line| {
                    if let Line::Root(line) = line {
                        line.root = root.into();
                    }
                },
            )
        };
        assert_eq!(broken(&root(1, "other")), [Rule::Roots]);
        // An acknowledgement's certificate counts as well.
        let lines = with(
            |line| matches!(line, Line::Root(line) if line.endpoint == 1),
            |line| {
                if let Line::Root(line) = line {
                    (line.time, line.root) = (7, "not root7".into());
                }
            },
        );
        assert_eq!(broken(&lines), [Rule::Roots]);
        assert_eq!(broken(&without(|line| matches!(line, Line::Root(_)))), [Rule::Incomplete]);
    }

    #[test]
    fn missing_progress_after_healing_is_reported() {
        let stuck = |at: Option<u64>| {
            with(
                |line| matches!(line, Line::Progress(line) if line.endpoint == 1),
                move |line| *line = progress_line(1, at),
            )
        };
        assert_eq!(broken(&stuck(None)), [Rule::Stuck]);
        assert_eq!(broken(&stuck(Some(1501))), [Rule::Stuck]);
        assert_eq!(broken(&stuck(Some(1500))), []);
    }

    #[test]
    fn wrong_certificates_and_history_gaps_are_reported() {
        let wrong =
            |call: &mut Call| call.outcome = Outcome::Wrong { text: "does not verify".into() };
        assert!(broken(&with_call(5, wrong)).contains(&Rule::Certificate));
        assert_eq!(broken(&without(|line| matches!(line, Line::Header(_)))), [Rule::Incomplete]);
        assert_eq!(
            broken(&without(|line| matches!(line, Line::Final(last) if last.endpoint == 0))),
            [Rule::Incomplete]
        );
        assert_eq!(
            broken(&without(|line| matches!(line, Line::Progress(line) if line.endpoint == 0))),
            [Rule::Incomplete]
        );
        let nothing = without(|line| matches!(line, Line::Call(_) | Line::Read(_)));
        assert!(broken(&nothing).contains(&Rule::Incomplete));
    }

    #[test]
    fn texts_are_bounded() {
        let mut verdict = Verdict::default();
        for index in 0..100 {
            verdict.broken.entry(Rule::Lost).or_default().add(format_args!("{index}"));
        }
        assert_eq!(
            (verdict.broken[&Rule::Lost].count, verdict.broken[&Rule::Lost].texts.len()),
            (100, TEXTS_MAX)
        );
    }
}
