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

/// The status report at `address`, unparsed. `flag` is the argument that states the address; error
/// messages name it. Errors: no answer, an answer after the deadline, a status other than 200, or a
/// body over the limit.
fn report(address: SocketAddr, flag: &str) -> Result<Bytes> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::time::timeout(TIMEOUT, fetch(address, flag)).await.with_context(|| {
            format!("the node at {address} did not answer within {} s", TIMEOUT.as_secs())
        })?
    })
}

/// Fetches the report of type `R` and prints it: as JSON, or as `text` formats it.
pub fn print<R: DeserializeOwned + Serialize>(
    address: SocketAddr,
    flag: &str,
    json: bool,
    text: impl FnOnce(&R) -> String,
) -> Result<()> {
    let bytes = report(address, flag)?;
    let report: R = serde_json::from_slice(&bytes)
        .with_context(|| format!("what {address} answered is no status report of this version"))?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

async fn fetch(address: SocketAddr, flag: &str) -> Result<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.with_context(|| {
        format!("no node answers at {address}; is it running, and is {flag} right?")
    })?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::get("/status.json")
        .header(header::HOST, address.to_string())
        .body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), REPORT_BYTES_MAX)
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("reading the report: {error}"))?
        .to_bytes();
    connection.abort();
    if !status.is_success() {
        bail!(
            "{address} answered {status}: {}",
            String::from_utf8_lossy(&body).chars().take(300).collect::<String>()
        );
    }
    Ok(body)
}
