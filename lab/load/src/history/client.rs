//! How a client sends a call to a subnet of which any node may be dead, paused or partitioned.
//!
//! A call is signed once. It is sent to one endpoint; when that does not accept it or stops
//! answering, the same bytes go to the next one, so that it remains one call. Once an endpoint has
//! accepted it, the client polls its status, at that endpoint and then at others. Only a verified
//! certificate is an acknowledgement. A client gives up after [`TIMEOUT`]: then the outcome is
//! unknown, and the call may still happen until it expires.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use candid::{Principal, types::leb128};
use ic_agent::{
    AgentError, Certificate, Identity, RequestId,
    agent::{AgentBuilder, RequestStatusResponse},
    hash_tree::{Label, LookupResult},
};
use tokio::time::{Instant, sleep, timeout};

use super::lines::Outcome;
use crate::hammer::transport::{self, BackOff, CallAnswer, Http};

pub(super) use crate::hammer::transport::Endpoint;

/// Of a call, and of a certificate's age.
pub(super) const EXPIRY: Duration = Duration::from_secs(20);
/// For the outcome of a call.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
/// For one answer of one endpoint.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(4);
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How often one endpoint is asked for a status before the next one is.
const ASKS_PER_ENDPOINT: u32 = 20;
const HEALTHY_WITHIN: Duration = Duration::from_secs(30);

/// Connects to all of them with one identity and one root key.
pub(super) async fn connect(urls: &[String], identity: Arc<dyn Identity>) -> Result<Vec<Endpoint>> {
    let http = |index: u64| -> Result<Http> {
        let client = demo::client::http().timeout(ANSWER_TIMEOUT).build()?;
        Ok(Http { client, back_off: BackOff::new(index) })
    };
    let adjusted = |agent: AgentBuilder| agent.with_ingress_expiry(EXPIRY);
    transport::connect(urls, HEALTHY_WITHIN, identity, http, adjusted).await
}

/// What a certificate signs, and when.
pub(super) fn root_of(certificate: &Certificate) -> Result<(u64, String), String> {
    let time = match certificate.tree.lookup_path([b"time".as_slice()]) {
        LookupResult::Found(mut bytes) => leb128::decode_nat(&mut bytes).ok(),
        _ => None,
    };
    let time = time.and_then(|time| time.try_into().ok()).ok_or("the certificate has no time")?;
    Ok((time, hex::encode(certificate.tree.digest())))
}

/// A verified certificate of the time alone.
pub(super) async fn time_certificate(
    endpoint: &Endpoint,
    canister: Principal,
) -> Result<(u64, String)> {
    let path: Vec<Label<Vec<u8>>> = vec!["time".into()];
    let asked = endpoint.agent.read_state_raw(vec![path], canister);
    let certificate = timeout(ANSWER_TIMEOUT, asked).await.context("no answer")??;
    root_of(&certificate).map_err(anyhow::Error::msg)
}

/// How a call ended, with the reply's bytes when it was acknowledged.
pub(super) struct CompletedCall {
    pub(super) outcome: Outcome,
    pub(super) reply: Vec<u8>,
    pub(super) attempts: u32,
}

enum EndpointResponse {
    /// A verified certificate with the outcome.
    Outcome(Outcome, Vec<u8>),
    /// It has taken the call.
    Taken,
    /// It has not taken it, and the call had no effect through it.
    Refused(String, Duration),
}

/// The error is why it is unknown whether the endpoint has taken the call.
type EndpointResult = Result<EndpointResponse, String>;

/// Has a call done; `first` is the endpoint to begin with.
pub(super) async fn call(
    endpoints: &[Endpoint],
    first: usize,
    canister: Principal,
    method: &str,
    argument: Vec<u8>,
) -> CompletedCall {
    let deadline = Instant::now() + TIMEOUT;
    let done = |outcome, attempts| CompletedCall { outcome, reply: vec![], attempts };
    let signed = match endpoints[first].agent.update(&canister, method).with_arg(argument).sign() {
        Ok(signed) => signed,
        Err(error) => {
            return done(Outcome::Rejected { text: format!("it could not be signed: {error}") }, 0);
        }
    };
    let (mut at, mut attempts, mut taken, mut certain) = (first, 0, false, true);
    let mut last = String::new();
    while Instant::now() < deadline {
        let endpoint = &endpoints[at];
        let response = match taken {
            false => {
                attempts += 1;
                send(endpoint, at, canister, &signed.request_id, signed.signed_update.clone()).await
            }
            true => poll_status(endpoint, at, canister, &signed.request_id).await,
        };
        match response {
            Ok(EndpointResponse::Outcome(outcome, reply)) => {
                return CompletedCall { outcome, reply, attempts };
            }
            Ok(EndpointResponse::Taken) => taken = true,
            Ok(EndpointResponse::Refused(text, wait)) => {
                last = format!("{}: {text}", endpoint.url);
                at = (at + 1) % endpoints.len();
                sleep(wait).await;
            }
            Err(text) => {
                last = format!("{}: {text}", endpoint.url);
                certain = false;
                // Another node may never have seen it: it is sent there again, which makes it no
                // second call.
                taken = false;
                at = (at + 1) % endpoints.len();
                sleep(ASK_AGAIN).await;
            }
        }
    }
    // A call refused by every endpoint it was sent to has no effect.
    let outcome = match certain && !taken && attempts > 0 {
        true => Outcome::Rejected { text: format!("no endpoint accepted it; {last}") },
        false => Outcome::Unknown { text: last },
    };
    done(outcome, attempts)
}

async fn send(
    endpoint: &Endpoint,
    index: usize,
    canister: Principal,
    request: &RequestId,
    body: Vec<u8>,
) -> EndpointResult {
    let (status, retry_after, bytes) = match transport::post_call(endpoint, canister, body).await {
        Ok(response) => response,
        // Nothing was sent to a node that does not listen.
        Err(error) if error.is_connect() => {
            return Ok(EndpointResponse::Refused("it does not listen".into(), ASK_AGAIN));
        }
        Err(error) => return Err(error.to_string()),
    };
    let text = || String::from_utf8_lossy(&bytes).chars().take(300).collect::<String>();
    match status {
        200 => {}
        202 => return Ok(EndpointResponse::Taken),
        // The node answers so before it takes a call, or because it could not wait for what became
        // of it.
        429 | 503 => {
            sleep(retry_after.unwrap_or(ASK_AGAIN).min(Duration::from_secs(2))).await;
            return Err(format!("{status}: {}", text()));
        }
        _ => return Err(format!("{status}: {}", text())),
    }
    let answer: CallAnswer = serde_cbor_2::from_slice(&bytes).map_err(|error| error.to_string())?;
    match answer.status.as_str() {
        "replied" => {}
        "non_replicated_rejection" => {
            return Ok(EndpointResponse::Refused(answer.reject_message, ASK_AGAIN));
        }
        other => return Err(format!("status `{other}`")),
    }
    let certificate: Certificate = match serde_cbor_2::from_slice(&answer.certificate) {
        Ok(certificate) => certificate,
        Err(error) => return Ok(without_reply(Outcome::Wrong { text: error.to_string() })),
    };
    if let Err(error) = endpoint.agent.verify(&certificate, canister) {
        return unverified(&error);
    }
    match transport::outcome(&certificate, request) {
        Ok(reply) => Ok(acknowledged(&certificate, index, reply)),
        Err(failure) if !failure.may_have_executed() => {
            Ok(without_reply(Outcome::Rejected { text: failure.text }))
        }
        Err(failure) => Err(failure.text),
    }
}

async fn poll_status(
    endpoint: &Endpoint,
    index: usize,
    canister: Principal,
    request: &RequestId,
) -> EndpointResult {
    for _ in 0..ASKS_PER_ENDPOINT {
        let asked = endpoint.agent.request_status_raw(request, canister);
        match timeout(ANSWER_TIMEOUT, asked).await.map_err(|_| "no answer")? {
            Err(error) => return unverified(&error),
            Ok((RequestStatusResponse::Replied(reply), certificate)) => {
                return Ok(acknowledged(&certificate, index, reply.arg));
            }
            Ok((RequestStatusResponse::Rejected(reject), _)) => {
                return Ok(without_reply(Outcome::Rejected { text: reject.reject_message }));
            }
            Ok(_) => sleep(ASK_AGAIN).await,
        }
    }
    Err("it has taken the call, and says nothing of what became of it".into())
}

fn without_reply(outcome: Outcome) -> EndpointResponse {
    EndpointResponse::Outcome(outcome, vec![])
}

fn acknowledged(certificate: &Certificate, endpoint: usize, reply: Vec<u8>) -> EndpointResponse {
    match root_of(certificate) {
        // The value is filled in by the caller, which decodes the reply.
        Ok((time, root)) => EndpointResponse::Outcome(
            Outcome::Acknowledged { value: 0, time, root, endpoint },
            reply,
        ),
        Err(text) => without_reply(Outcome::Wrong { text }),
    }
}

/// A certificate that is forged, or no certificate at all; one that is only old comes from a node
/// that was asleep.
fn unverified(error: &AgentError) -> EndpointResult {
    match error {
        AgentError::CertificateVerificationFailed()
        | AgentError::CertificateNotAuthorized()
        | AgentError::CertificateHasTooManyDelegations => {
            Ok(without_reply(Outcome::Wrong { text: error.to_string() }))
        }
        other => Err(other.to_string()),
    }
}
