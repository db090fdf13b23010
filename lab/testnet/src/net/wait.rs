//! Waiting until a net serves, with a word on what is missing.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{
    reading::{Asker, Report},
    session::{Condition, Session},
    state::Backend,
};

const ASK_EVERY: Duration = Duration::from_millis(100);
/// Shortest time between two progress reports.
const TELL_EVERY: Duration = Duration::from_secs(2);
/// Of a node's log, when it ended.
const LAST_WORDS_BYTES: usize = 2048;
/// Of a machine's: a panic and its trace.
const MACHINE_LAST_WORDS_BYTES: usize = 6 << 10;

/// Condition to wait for.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    /// Certified heights have to move, not only be there: the nodes are one subnet, which makes
    /// blocks by itself.
    pub(crate) moving: bool,
    pub(crate) timeout: Duration,
}

/// The condition that a node does not meet yet; `None` when it meets all. `first` is the height at
/// which it was first seen.
fn missing(answer: &Result<Report, String>, first: Option<u64>, goal: Goal) -> Option<String> {
    match answer {
        Err(why) => Some(why.clone()),
        Ok(report) if !report.healthy => {
            let how = if report.catching_up { ", and fetches what it missed" } else { "" };
            Some(format!("it is {}{how}", report.status))
        }
        Ok(report) if goal.moving && first.is_none_or(|first| report.height <= first) => {
            let peers = report.peers_heard.map(|peers| format!(", it has heard of {peers} others"));
            Some(format!(
                "its certified height stays at {}{}",
                report.height,
                peers.unwrap_or_default()
            ))
        }
        Ok(_) => None,
    }
}

/// Waits for the nodes of `indices`. Ends early when one of them ended.
pub(crate) async fn until_serving(
    session: &Session,
    asker: &Asker,
    indices: &[usize],
    goal: Goal,
    mut say: impl FnMut(&str),
) -> Result<Vec<Report>> {
    let started = Instant::now();
    let mut first: Vec<Option<u64>> = vec![None; indices.len()];
    let (mut told, mut told_at) = (String::new(), Instant::now());
    loop {
        let mut lacking = Vec::new();
        let mut silent = Vec::new();
        let mut reports = Vec::new();
        for (place, &index) in indices.iter().enumerate() {
            let condition = session.condition(index);
            if let Condition::Ended(_) = condition {
                bail!("node {index} {}{}", condition.description(), last_words(session, index));
            }
            let answer = asker.report(&session.net.nodes[index].url()).await;
            if answer.is_err() {
                silent.push(index);
            }
            if let Some(words) = missing(&answer, first[place], goal) {
                lacking.push(format!("node {index}: {words}"));
            }
            if let Ok(report) = answer {
                if report.healthy && first[place].is_none() {
                    first[place] = Some(report.height);
                }
                reports.push(report);
            }
        }
        if lacking.is_empty() {
            return Ok(reports);
        }
        let words = lacking.join("; ");
        if started.elapsed() > goal.timeout {
            let logs = "their logs: thimble-lab net logs N";
            // The last output of a machine has the reason; nodes of groups report it themselves.
            let last = match session.net.backend {
                Backend::Vm => {
                    silent.first().map_or_else(String::new, |index| last_words(session, *index))
                }
                Backend::Process => String::new(),
            };
            bail!(
                "not after {} s. {words}. The net is left as it is ({logs}){last}",
                goal.timeout.as_secs()
            );
        }
        if told_at.elapsed() > TELL_EVERY && words != told {
            say(&format!("{:.0} s: {words}", started.elapsed().as_secs_f64()));
            (told, told_at) = (words, Instant::now());
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// The end of a node's log, and the output of its keeper.
fn last_words(session: &Session, index: usize) -> String {
    let most = match session.net.backend {
        Backend::Process => LAST_WORDS_BYTES,
        Backend::Vm => MACHINE_LAST_WORDS_BYTES,
    };
    let tail = |path: std::path::PathBuf| {
        let text = std::fs::read(path).unwrap_or_default();
        let tail = text.get(text.len().saturating_sub(most)..).unwrap_or_default();
        String::from_utf8_lossy(tail).trim().to_owned()
    };
    let said = [tail(session.place.log(index)), tail(session.place.keeper_log(index))];
    said.iter().filter(|text| !text.is_empty()).map(|text| format!("\n{text}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let goal = Goal { moving: true, timeout: Duration::ZERO };
        let report = |healthy, height| Report {
            healthy,
            height,
            status: "recovering".into(),
            peers_heard: Some(1),
            ..Report::default()
        };
        let lacks = |answer: Result<Report, String>, first| missing(&answer, first, goal);
        assert_eq!(
            lacks(Err("it does not listen yet".into()), None).unwrap(),
            "it does not listen yet"
        );
        assert_eq!(lacks(Ok(report(false, 3)), None).unwrap(), "it is recovering");
        let stuck = "its certified height stays at 3, it has heard of 1 others";
        assert_eq!(lacks(Ok(report(true, 3)), None).unwrap(), stuck);
        assert_eq!(lacks(Ok(report(true, 3)), Some(3)).unwrap(), stuck);
        assert_eq!(lacks(Ok(report(true, 4)), Some(3)), None);
        let resting = Goal { moving: false, ..goal };
        assert_eq!(missing(&Ok(report(true, 0)), None, resting), None);
    }
}
