//! Targets of requests: a page, a connection, a JSON-RPC method, a command.

use std::{process::Stdio, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::{net::TcpStream, process::Command};

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A target of requests.
#[derive(Debug)]
pub(crate) enum Target {
    /// `GET` of an address: any status below 400 will do.
    Http(reqwest::Client, String),
    /// A connection to `host:port`.
    Tcp(String),
    /// A JSON-RPC 2.0 call: address and body; an answer without `error` will do.
    Rpc(reqwest::Client, String, String),
    /// A command of the shell: status 0 will do.
    Command(String),
}

impl Target {
    pub(crate) fn http(address: &str) -> Result<Self> {
        Ok(Self::Http(client()?, checked(address)?))
    }

    pub(crate) fn tcp(address: &str) -> Result<Self> {
        let (host, port) = address.rsplit_once(':').context("it wants HOST:PORT")?;
        ensure!(!host.is_empty() && port.parse::<u16>().is_ok(), "`{address}` is no HOST:PORT");
        Ok(Self::Tcp(address.to_owned()))
    }

    /// `parameters`: JSON, an array or an object.
    pub(crate) fn rpc(address: &str, method: &str, parameters: Option<&str>) -> Result<Self> {
        let parameters: serde_json::Value = match parameters {
            Some(text) => serde_json::from_str(text)
                .with_context(|| format!("the parameters `{text}` are no JSON"))?,
            None => serde_json::json!([]),
        };
        let body =
            serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters});
        Ok(Self::Rpc(client()?, checked(address)?, body.to_string()))
    }

    /// Sends one request. Errors are texts.
    pub(crate) async fn ask(&self) -> Result<(), String> {
        match self {
            Self::Http(client, address) => {
                let answer = client.get(address).send().await.map_err(root_cause)?;
                read(answer).await.map(drop)
            }
            Self::Tcp(address) => {
                TcpStream::connect(address).await.map(drop).map_err(|error| error.to_string())
            }
            Self::Rpc(client, address, body) => {
                let request = client.post(address).header("content-type", "application/json");
                let answer = request.body(body.clone()).send().await.map_err(root_cause)?;
                let body = read(answer).await?;
                let answer: serde_json::Value = serde_json::from_slice(&body)
                    .map_err(|_| "the answer is no JSON".to_owned())?;
                match answer.get("error").filter(|error| !error.is_null()) {
                    Some(error) => Err(format!("the answer is an error: {error}")),
                    None if answer.get("result").is_none() => {
                        Err("the answer has no result".into())
                    }
                    None => Ok(()),
                }
            }
            Self::Command(command) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null());
                shell.stderr(Stdio::null()).kill_on_drop(true);
                let status = shell.status().await.map_err(|error| format!("sh: {error}"))?;
                if status.success() {
                    Ok(())
                } else {
                    Err(format!("the probe ended with {status}"))
                }
            }
        }
    }
}

fn client() -> Result<reqwest::Client> {
    let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_TIMEOUT);
    client.redirect(reqwest::redirect::Policy::none()).build().context("making the HTTP client")
}

fn checked(address: &str) -> Result<String> {
    let url = reqwest::Url::parse(address).with_context(|| format!("`{address}` is no address"))?;
    ensure!(url.scheme() == "http", "`{address}`: only http:// addresses are probed");
    Ok(address.to_owned())
}

async fn read(mut answer: reqwest::Response) -> Result<Vec<u8>, String> {
    let status = answer.status();
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(root_cause)? {
        if body.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(format!("the answer has more than {} MiB", ANSWER_BYTES_MAX >> 20));
        }
        body.extend_from_slice(&part);
    }
    if status.as_u16() >= 400 { Err(format!("HTTP status {status}")) } else { Ok(body) }
}

fn root_cause(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(&error);
    while let Some(next) = cause {
        text = next.to_string();
        cause = next.source();
    }
    text
}
