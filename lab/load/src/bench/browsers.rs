//! Cost of browsers: many concurrent clients of the HTTP gateway, half of them slow.
//!
//! They download the long assets of `canisters/frontend`, over and over. A client refused for lack
//! of room retries after a second, per the response.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use candid::Principal;
use demo::measure;
use reqwest::{Client, Response, StatusCode};
use tokio::task::JoinSet;

/// Clients at once.
pub(super) const CLIENTS: usize = 200;
/// Bytes per second of a slow one.
const SLOW_RATE: u64 = 200 << 10;
/// Downloaded assets: by a callback, and by ranges.
const LONG: [&str; 2] = ["/streamed", "/ranges"];
/// Bytes of each.
const LONG_BYTES: u64 = 5_000_000;
/// Page requested during the downloads.
const PAGE: &str = "/";
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long a node may take until released memory is free.
const SETTLES: Duration = Duration::from_secs(10);

pub(super) struct BrowserFigures {
    /// Anonymous bytes of all processes: with the canister there, at most under load, and after it.
    pub idle: u64,
    pub peak: u64,
    pub after: u64,
    /// Whole downloads, those broken off, and refusals.
    pub downloads: u64,
    pub broken: u64,
    pub refused: u64,
    /// The longest that a page took, of which one is asked for all the time.
    pub slowest_page: Duration,
    /// Of those, how many, and how many were refused.
    pub pages: u64,
    pub pages_refused: u64,
}

#[derive(Default)]
struct Counts {
    downloads: AtomicU64,
    broken: AtomicU64,
    refused: AtomicU64,
}

#[derive(Clone)]
struct Site {
    client: Client,
    /// Address of the gateway.
    address: String,
    host: String,
}

impl Site {
    async fn get(&self, path: &str) -> reqwest::Result<Response> {
        let url = format!("http://{}{path}", self.address);
        self.client.get(url).header("host", &self.host).send().await
    }

    async fn download(self, number: usize, until: Instant, counts: Arc<Counts>) {
        let path = LONG[number / 2 % LONG.len()];
        while Instant::now() < until {
            let outcome = match self.get(path).await {
                Ok(response) if response.status() == StatusCode::OK => {
                    read(response, number.is_multiple_of(2)).await
                }
                _ => {
                    counts.refused.fetch_add(1, Relaxed);
                    tokio::time::sleep(RETRY_AFTER).await;
                    continue;
                }
            };
            let counter =
                if outcome == Some(LONG_BYTES) { &counts.downloads } else { &counts.broken };
            counter.fetch_add(1, Relaxed);
        }
    }
}

/// The bytes of a body that was received to its end.
async fn read(mut response: Response, slowly: bool) -> Option<u64> {
    let mut bytes = 0;
    while let Some(part) = response.chunk().await.ok()? {
        bytes += part.len() as u64;
        if slowly {
            tokio::time::sleep(Duration::from_micros(part.len() as u64 * 1_000_000 / SLOW_RATE))
                .await;
        }
    }
    Some(bytes)
}

/// Puts the load on a node for `seconds`.
pub(super) async fn measure(
    pid: u32,
    address: String,
    canister: Principal,
    seconds: u64,
) -> Result<BrowserFigures> {
    let client = demo::client::http().build()?;
    let site = Site { client, address, host: format!("{canister}.localhost") };
    for path in LONG.into_iter().chain([PAGE]) {
        let response = site.get(path).await.with_context(|| format!("asking for {path}"))?;
        ensure!(response.status() == StatusCode::OK, "{path} is answered {}", response.status());
        response.bytes().await?;
    }
    tokio::time::sleep(SETTLES).await;
    let anonymous = || measure::processes(pid).map(|all| measure::totals(&all).0);
    let idle = anonymous()?;
    let until = Instant::now() + Duration::from_secs(seconds);
    let counts = Arc::new(Counts::default());
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(site.clone().download(number, until, counts.clone()));
    }
    let (mut peak, mut slowest_page, mut pages, mut pages_refused) = (0, Duration::ZERO, 0, 0);
    while Instant::now() < until {
        peak = peak.max(anonymous()?);
        let asked = Instant::now();
        match site.get(PAGE).await {
            Ok(page) if page.status() == StatusCode::OK => {
                slowest_page = slowest_page.max(asked.elapsed());
                pages += 1;
            }
            _ => pages_refused += 1,
        }
        tokio::time::sleep(SAMPLE_EVERY).await;
    }
    clients.shutdown().await;
    tokio::time::sleep(SETTLES).await;
    let [downloads, broken, refused] =
        [&counts.downloads, &counts.broken, &counts.refused].map(|count| count.load(Relaxed));
    let after = anonymous()?;
    Ok(BrowserFigures {
        idle,
        peak,
        after,
        downloads,
        broken,
        refused,
        slowest_page,
        pages,
        pages_refused,
    })
}
