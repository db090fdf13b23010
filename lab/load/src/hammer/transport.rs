//! The HTTP of every operation, below `ic-agent` and outside of it.
//!
//! `ic-agent` by itself silently repeats requests that were answered with 429 or 503, and loses the
//! `Retry-After` header. This client does neither: a refused call or query returns to the driver,
//! which counts it and waits for the stated time. It waits here only while polling for a call that
//! the node has accepted, because giving up would turn a known outcome into an unknown one; those
//! refusals are counted too.

use std::{
    cell::Cell,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Result, ensure};
use bytes::Bytes;
use ic_agent::{
    Agent, AgentError, Certificate, Identity, RequestId,
    agent::{AgentBuilder, HttpService, agent_error::TransportError},
    hash_tree::LookupResult,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;

use super::failure::{Class, Failure};

/// Refusals of one poll before the call's outcome counts as unknown.
const POLL_REFUSALS_MAX: u32 = 60;
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

tokio::task_local! {
    /// Traffic of the operation that runs in this task, and the retry delays it received.
    pub(crate) static TRAFFIC: Traffic;
}

/// Counted while an operation runs.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) sent_bytes: Cell<u64>,
    pub(crate) received_bytes: Cell<u64>,
    pub(crate) retry_after: Cell<Option<Duration>>,
    pub(crate) polls_refused: Cell<u64>,
}

impl Traffic {
    fn count(sent: usize, received: usize, retry_after: Option<Duration>) {
        let _ = TRAFFIC.try_with(|traffic| {
            traffic.sent_bytes.set(traffic.sent_bytes.get() + sent as u64);
            traffic.received_bytes.set(traffic.received_bytes.get() + received as u64);
            traffic.retry_after.set(retry_after);
        });
    }
}

/// `Retry-After` in seconds, as this node sends it (the form with a date is not read).
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: u64 = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// Wait for a requested delay `told`: never less, and up to half as much again so
/// that clients spread.
#[derive(Debug)]
pub(crate) struct BackOff {
    random: Mutex<ChaCha8Rng>,
}

impl BackOff {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Mutex::new(ChaCha8Rng::seed_from_u64(seed)) }
    }

    pub(crate) fn wait(&self, told: Duration) -> Duration {
        let factor = cli::lock(&self.random).gen_range(1.0..1.5);
        told.max(Duration::from_millis(10)).mul_f64(factor)
    }
}

/// The HTTP client that `ic-agent` is given.
#[derive(Debug)]
pub(crate) struct Http {
    pub(crate) client: reqwest::Client,
    pub(crate) back_off: BackOff,
}

impl Http {
    async fn once(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, AgentError> {
        let sent = request.body().len();
        let request = reqwest::Request::try_from(request)
            .map_err(|error| AgentError::InvalidReplicaUrl(error.to_string()))?;
        let failed = |error| AgentError::TransportError(TransportError::Reqwest(error));
        Traffic::count(sent, 0, None);
        let response = self.client.execute(request).await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.bytes().await.map_err(failed)?;
        Traffic::count(0, body.len(), retry_after(&headers));
        let mut answer = http::Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }
}

#[async_trait::async_trait]
impl HttpService for Http {
    async fn call<'a>(
        &'a self,
        request: &'a (dyn Fn() -> Result<http::Request<Bytes>, AgentError> + Send + Sync),
        _max_retries: usize,
        _size_limit: Option<usize>,
    ) -> Result<http::Response<Bytes>, AgentError> {
        for _ in 0..POLL_REFUSALS_MAX {
            let request = request()?;
            let polling = request.uri().path().ends_with("/read_state");
            let answer = self.once(request).await?;
            match (answer.status().as_u16(), retry_after(answer.headers())) {
                (429 | 503, Some(told)) if polling => {
                    let _ = TRAFFIC.try_with(|traffic| {
                        traffic.polls_refused.set(traffic.polls_refused.get() + 1)
                    });
                    tokio::time::sleep(self.back_off.wait(told)).await;
                }
                _ => return Ok(answer),
            }
        }
        Err(AgentError::TimeoutWaitingForResponse())
    }
}

/// A node, as a client sees it.
pub(crate) struct Endpoint {
    pub(crate) url: String,
    pub(crate) agent: Agent,
    pub(crate) http: Arc<Http>,
}

/// Connects to all of them with one identity and one root key; `http` makes the client of each, and
/// `adjusted` states what else its agent needs.
pub(crate) async fn connect(
    urls: &[String],
    healthy_within: Duration,
    identity: Arc<dyn Identity>,
    http: impl Fn(u64) -> Result<Http>,
    adjusted: impl Fn(AgentBuilder) -> AgentBuilder,
) -> Result<Vec<Endpoint>> {
    ensure!(!urls.is_empty(), "there is no endpoint");
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for (index, url) in urls.iter().enumerate() {
        let http = Arc::new(http(index as u64)?);
        let agent = Agent::builder()
            .with_url(url)
            .with_arc_identity(identity.clone())
            .with_arc_http_middleware(http.clone());
        let agent = adjusted(agent).build()?;
        demo::client::wait_until_healthy(&agent, url, healthy_within).await?;
        if let Some(first) = endpoints.first() {
            ensure!(
                first.agent.read_root_key() == agent.read_root_key(),
                "{url} has another root key than {}: they are not nodes of one subnet",
                first.url
            );
        }
        endpoints.push(Endpoint { url: url.trim_end_matches('/').to_owned(), agent, http });
    }
    Ok(endpoints)
}

/// A call's answer as the synchronous endpoint gives it.
#[derive(Deserialize)]
pub(crate) struct CallAnswer {
    pub(crate) status: String,
    #[serde(default, with = "serde_bytes")]
    pub(crate) certificate: Vec<u8>,
    #[serde(default)]
    reject_code: u8,
    #[serde(default)]
    pub(crate) reject_message: String,
    #[serde(default)]
    error_code: Option<String>,
}

/// Sends a signed call over plain HTTP; the status, the stated delay and the body of the response.
pub(crate) async fn post_call(
    Endpoint { url, http, .. }: &Endpoint,
    canister: candid::Principal,
    body: Vec<u8>,
) -> reqwest::Result<(u16, Option<Duration>, Bytes)> {
    Traffic::count(body.len(), 0, None);
    let url = format!("{url}/api/v4/canister/{canister}/call");
    let request = http.client.post(url).header("content-type", "application/cbor").body(body);
    let response = request.send().await?;
    let (status, told) = (response.status().as_u16(), retry_after(response.headers()));
    let body = response.bytes().await?;
    Traffic::count(0, body.len(), told);
    Ok((status, told, body))
}

/// An update that the agent signs and that is sent over plain HTTP. The reply is taken out of the
/// certificate; the certificate's signature is verified when `verify` is set.
pub(crate) async fn update_signed(
    endpoint: &Endpoint,
    canister: candid::Principal,
    (method, argument): (&str, Vec<u8>),
    verify: bool,
) -> Result<Vec<u8>, Failure> {
    let of_agent = |error: AgentError| Failure::agent(&error, None);
    let agent = &endpoint.agent;
    let signed = agent.update(&canister, method).with_arg(argument).sign().map_err(of_agent)?;
    let posted = post_call(endpoint, canister, signed.signed_update).await;
    let (status, told, body) = posted.map_err(|error| Failure::transport(&error))?;
    match status {
        200 => {}
        202 => {
            return agent
                .wait(&signed.request_id, canister)
                .await
                .map(|(reply, _)| reply)
                .map_err(of_agent);
        }
        _ => return Err(Failure::http(status, told, &body)),
    }
    let unknown = |text: String| Failure::new(Class::Protocol, text);
    let answer: CallAnswer =
        serde_cbor_2::from_slice(&body).map_err(|error| unknown(error.to_string()))?;
    match answer.status.as_str() {
        "replied" => {}
        "non_replicated_rejection" => {
            return Err(Failure::reject(
                answer.reject_code,
                answer.error_code.as_deref(),
                answer.reject_message,
            ));
        }
        other => return Err(unknown(format!("the call's status is `{other}`"))),
    }
    let certificate: Certificate = serde_cbor_2::from_slice(&answer.certificate)
        .map_err(|error| unknown(error.to_string()))?;
    if verify {
        agent.verify(&certificate, canister).map_err(of_agent)?;
    }
    outcome(&certificate, &signed.request_id)
}

/// Outcome of a call in a certificate.
pub(crate) fn outcome(certificate: &Certificate, request: &RequestId) -> Result<Vec<u8>, Failure> {
    let look = |label: &str| match certificate.tree.lookup_path([
        b"request_status".as_slice(),
        request.as_slice(),
        label.as_bytes(),
    ]) {
        LookupResult::Found(bytes) => Some(bytes),
        _ => None,
    };
    match look("status") {
        Some(b"replied") => {
            let absent = || {
                Failure::new(Class::Certificate, "the certificate says `replied` without a reply")
            };
            look("reply").map(<[u8]>::to_vec).ok_or_else(absent)
        }
        Some(b"rejected") => {
            let text = |label| look(label).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            let code =
                look("reject_code").and_then(|bytes| bytes.first().copied()).unwrap_or_default();
            Err(Failure::reject(
                code,
                text("error_code").as_deref(),
                text("reject_message").unwrap_or_default(),
            ))
        }
        status => {
            let status = status.map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            Err(Failure::new(
                Class::Protocol,
                format!("the certificate's status of the call is {status:?}"),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_is_at_least_retry_after_and_repeats_with_the_seed() {
        let told = Duration::from_secs(2);
        let waits = |seed| -> Vec<Duration> {
            let back_off = BackOff::new(seed);
            (0..100).map(|_| back_off.wait(told)).collect()
        };
        assert!(waits(1).iter().all(|wait| *wait >= told && *wait < told.mul_f64(1.5)));
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }

    #[test]
    fn retry_after_is_read_in_seconds_and_capped() {
        let headers = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(headers("5"), Some(Duration::from_secs(5)));
        assert_eq!(headers("99999999"), Some(RETRY_AFTER_MAX));
        assert_eq!(headers("soon"), None);
    }
}
