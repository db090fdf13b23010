//! Asking a running program for its status report.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, body::Bytes, header};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};

/// A larger report is invalid.
pub const REPORT_BYTES_MAX: usize = 4 << 20;
/// A program that is alive answers sooner.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Longest text of a refusal that is shown.
const REFUSAL_CHARS_MAX: usize = 600;

/// A document of a running program, and its names in error messages.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// Its path on the program's HTTP server.
    pub path: &'a str,
    /// What it is: `report`.
    pub what: &'a str,
    /// The argument that states the address.
    pub flag: &'a str,
    /// How long the program may take to answer.
    pub timeout: Duration,
    /// A larger document is invalid.
    pub bytes_max: usize,
}

/// The document at `address`, unparsed. Errors: no answer, an answer after the deadline, a status
/// other than 200, or a body over the limit.
pub fn fetch(address: SocketAddr, query: Query<'_>) -> Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let seconds = query.timeout.as_secs();
    runtime.block_on(async {
        tokio::time::timeout(query.timeout, answer(address, query))
            .await
            .with_context(|| format!("the node at {address} did not answer within {seconds} s"))?
    })
}

/// Fetches the report of type `R` and prints it: as JSON, or as `text` formats it.
pub fn print<R: DeserializeOwned + Serialize>(
    address: SocketAddr,
    flag: &str,
    json: bool,
    text: impl FnOnce(&R) -> String,
) -> Result<()> {
    let (what, timeout, bytes_max) = ("report", TIMEOUT, REPORT_BYTES_MAX);
    let bytes = fetch(address, Query { path: "/status.json", what, flag, timeout, bytes_max })?;
    let report: R = serde_json::from_slice(&bytes)
        .with_context(|| format!("what {address} answered is no status report of this version"))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

async fn answer(address: SocketAddr, query: Query<'_>) -> Result<Bytes> {
    let Query { path, what, flag, bytes_max, .. } = query;
    let stream = tokio::net::TcpStream::connect(address).await.with_context(|| {
        format!("no node answers at {address}; is it running, and is {flag} right?")
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request =
        Request::get(path).header(header::HOST, address.to_string()).body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), bytes_max)
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("reading the {what}: {error}"))?
        .to_bytes();
    connection.abort();
    if !status.is_success() {
        let words: String =
            String::from_utf8_lossy(&body).chars().take(REFUSAL_CHARS_MAX).collect();
        bail!("{address} answered {status}: {}", words.trim());
    }
    Ok(body)
}
