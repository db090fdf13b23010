//! After everything was healed: does every node make progress, do all hold the same, and what is
//! it.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use candid::Principal;
use futures::future::join_all;
use ic_agent::Identity;
use tokio::time::{Instant, sleep};

use super::{
    client::{self, Endpoint},
    lines::{self, CallKind, Final, Line, Outcome, Progress, Root, Writer, now_micros},
    record::{READ_PAGES, query},
};
use crate::hammer::{
    pattern::PAGE_BYTES,
    protocol::{self, Info, ReadReply},
};

/// How long certificates are collected, so that nodes show some of the same height.
const ROOTS_FOR: Duration = Duration::from_secs(10);
const ROOTS_EVERY: Duration = Duration::from_millis(50);
/// Timeout until all nodes agree about every canister, once no call can be in flight.
const SAME_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tries of one read of a healed node, which may still be busy.
const TRIES: u32 = 20;

/// Appends the current state of every node to the history.
pub(super) async fn run(path: &Path, identity: Arc<dyn Identity>, limit: Duration) -> Result<()> {
    let healed_micros = now_micros();
    let (lines, _) = lines::read(path)?;
    let header = lines
        .iter()
        .find_map(|line| match line {
            Line::Header(header) => Some(header.clone()),
            _ => None,
        })
        .context("the history has no header")?;
    let mut history = Writer::append(path)?;
    let mut canisters = Vec::new();
    for text in &header.canisters {
        canisters.push(Principal::from_text(text)?);
    }
    let endpoints = client::connect(&header.endpoints, identity).await?;
    ensure!(
        hex::encode(endpoints[0].agent.read_root_key()) == header.root_key,
        "the subnet has another root key than when the history began"
    );

    // One after the other is enough: each has the whole limit, which begins for all at once.
    let mut next_call = lines.iter().filter(|line| matches!(line, Line::Call(_))).count() as u64;
    for (index, endpoint) in endpoints.iter().enumerate() {
        let (progress, calls) =
            progress(endpoint, index, canisters[0], &mut next_call, healed_micros, limit).await;
        for call in calls {
            history.write(&Line::Call(call))?;
        }
        history.write(&Line::Progress(progress))?;
    }

    // A call whose client gave up may happen until it expires.
    let open = lines.iter().filter_map(|line| match line {
        Line::Call(call) if matches!(call.outcome, Outcome::Unknown { .. }) => {
            Some(call.sent_micros)
        }
        _ => None,
    });
    if let Some(sent) = open.max() {
        let over = sent + (client::EXPIRY + Duration::from_secs(2)).as_micros() as u64;
        sleep(Duration::from_micros(over.saturating_sub(now_micros()))).await;
    }
    roots(&endpoints, canisters[0], &mut history).await?;
    until_same(&endpoints, &canisters).await?;
    for (index, endpoint) in endpoints.iter().enumerate() {
        for (canister, id) in canisters.iter().enumerate() {
            let used = lines.iter().filter_map(|line| match line {
                Line::Call(call) if call.canister == canister => match call.work {
                    CallKind::Append { page } => Some(page + 1),
                    _ => None,
                },
                _ => None,
            });
            // Beyond the pages that calls were sent for, some that must be empty.
            let pages = (used.max().unwrap_or(0) + READ_PAGES).min(header.pages);
            let place = CanisterOnNode { endpoint, index, canister, id: *id, pages };
            place.read(&mut history).await?;
        }
    }
    Ok(())
}

/// An update through one endpoint alone; it is a call like any other, and is checked like one.
async fn progress(
    endpoint: &Endpoint,
    index: usize,
    canister: Principal,
    next_call: &mut u64,
    healed_micros: u64,
    limit: Duration,
) -> (Progress, Vec<lines::Call>) {
    let end = healed_micros + limit.as_micros() as u64;
    let mut calls = Vec::new();
    let mut progress = Progress {
        endpoint: index,
        healed_micros,
        acknowledged_micros: None,
        limit_micros: limit.as_micros() as u64,
        text: String::new(),
    };
    loop {
        let sent_micros = now_micros();
        let mut done =
            client::call(std::slice::from_ref(endpoint), 0, canister, "inc", vec![]).await;
        let ended_micros = now_micros();
        match &mut done.outcome {
            Outcome::Acknowledged { value, endpoint, .. } => {
                *value = protocol::first_word(&done.reply).unwrap_or(0);
                *endpoint = index;
                progress.acknowledged_micros = Some(ended_micros);
            }
            Outcome::Unknown { text } | Outcome::Rejected { text } | Outcome::Wrong { text } => {
                progress.text.clone_from(text);
            }
        }
        calls.push(lines::Call {
            id: *next_call,
            client: usize::MAX,
            canister: 0,
            work: CallKind::Count,
            sent_micros,
            ended_micros,
            attempts: done.attempts,
            outcome: done.outcome,
        });
        *next_call += 1;
        if progress.acknowledged_micros.is_some() || now_micros() > end {
            return (progress, calls);
        }
    }
}

/// Collects certificates of all nodes at once.
async fn roots(endpoints: &[Endpoint], canister: Principal, history: &mut Writer) -> Result<()> {
    let deadline = Instant::now() + ROOTS_FOR;
    let collected = endpoints.iter().enumerate().map(|(index, endpoint)| async move {
        let mut roots: Vec<Root> = Vec::new();
        while Instant::now() < deadline {
            // A node that cannot be asked at the moment shows fewer.
            if let Ok((time, root)) = client::time_certificate(endpoint, canister).await
                && roots.last().is_none_or(|last| last.time != time)
            {
                roots.push(Root { endpoint: index, time, root });
            }
            sleep(ROOTS_EVERY).await;
        }
        roots
    });
    for roots in join_all(collected).await {
        for root in roots {
            history.write(&Line::Root(root))?;
        }
    }
    Ok(())
}

async fn info(endpoint: &Endpoint, canister: Principal) -> Result<Info> {
    Info::decode(&query(endpoint, canister, "info", vec![]).await?).map_err(anyhow::Error::msg)
}

/// Waits until all nodes agree. When they do not within the limit, the checker will report the
/// difference.
async fn until_same(endpoints: &[Endpoint], canisters: &[Principal]) -> Result<()> {
    let deadline = Instant::now() + SAME_WITHIN;
    loop {
        let mut agree = true;
        for canister in canisters {
            let mut first: Option<Info> = None;
            for endpoint in endpoints {
                match info(endpoint, *canister).await {
                    Ok(info) => agree &= *first.get_or_insert(info) == info,
                    Err(error) if Instant::now() > deadline => {
                        return Err(error)
                            .context(format!("asking {} for canister {canister}", endpoint.url));
                    }
                    Err(_) => agree = false,
                }
            }
        }
        if agree || Instant::now() > deadline {
            return Ok(());
        }
        sleep(LOOK_EVERY).await;
    }
}

struct CanisterOnNode<'a> {
    endpoint: &'a Endpoint,
    index: usize,
    canister: usize,
    id: Principal,
    /// How many are read.
    pages: u64,
}

impl CanisterOnNode<'_> {
    /// All of it by query, signed by the node; and the newest pages once more with a certificate.
    async fn read(&self, history: &mut Writer) -> Result<()> {
        // The state of this node, not of another one.
        let info = info(self.endpoint, self.id).await?;
        let line = |certified, first, pages, read: ReadReply| {
            Line::Final(Final {
                endpoint: self.index,
                canister: self.canister,
                certified,
                count: info.count,
                hops: info.hops,
                generation: info.generation,
                first,
                pages,
                runs: read.runs,
            })
        };
        let mut newest = (0, 0);
        let mut first = 0;
        while first < self.pages {
            let pages = READ_PAGES.min(self.pages - first);
            let read = self.queried(first, pages).await?;
            if read.runs.iter().any(|(_, generation)| *generation > 0) {
                newest = (first, pages);
            }
            history.write(&line(false, first, pages, read))?;
            first += pages;
        }
        let (first, pages) = newest;
        if pages == 0 {
            return Ok(());
        }
        let argument = protocol::encode_words(&[first * PAGE_BYTES, pages * PAGE_BYTES, 0]);
        let endpoints = std::slice::from_ref(self.endpoint);
        let done = client::call(endpoints, 0, self.id, "read_update", argument).await;
        let Outcome::Acknowledged { .. } = done.outcome else {
            bail!(
                "a certified read of canister {} through {} resulted in {:?}",
                self.id,
                self.endpoint.url,
                done.outcome
            )
        };
        let read = ReadReply::decode(&done.reply).map_err(anyhow::Error::msg)?;
        history.write(&line(true, first, pages, read))
    }

    async fn queried(&self, first: u64, pages: u64) -> Result<ReadReply> {
        let argument = protocol::encode_words(&[first * PAGE_BYTES, pages * PAGE_BYTES, 0]);
        let mut tries = 0;
        loop {
            match query(self.endpoint, self.id, "read", argument.clone()).await {
                Ok(reply) => return ReadReply::decode(&reply).map_err(anyhow::Error::msg),
                Err(error) if tries == TRIES => {
                    let place = format!("reading canister {} at {}", self.id, self.endpoint.url);
                    return Err(error).context(place);
                }
                Err(_) => tries += 1,
            }
            sleep(LOOK_EVERY).await;
        }
    }
}
