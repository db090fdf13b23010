//! HTTPS outcalls, as one node makes them: requests of canisters to servers outside.
//!
//! ```text
//! open requests -> service: slot, memory -> target: URL, headers
//!   -> addresses: which may be reached -> client: connection, TLS, response within its bounds
//!   -> transform (a query) -> answer, or failure: the reject
//! ```
//!
//! The result of a node is only its own answer; the subnet's answer is agreed elsewhere. So two
//! nodes with the same result must give the same answer: the text of a failure ([`Failure`]) is a
//! function of the request, the response and agreed limits alone. It names a limit with its value
//! only where all members have the same value; nothing in it depends on this machine, whose own
//! error goes to the log. A shortage of this machine (descriptors, a query worker) is not an
//! answer: the request is made again.
//!
//! Bounds: requests made at once, and their memory together, by `limits`; the response of each by
//! the canister's own limit, while it is read, headers included; time for each. A request without
//! room waits. Redirects are not followed, and bodies are passed on as received, compressed or not.
//! One connection serves one request: nothing is kept between requests.
//!
//! | to change | start at |
//! |---|---|
//! | which addresses may be reached | `addresses` |
//! | what is sent | `target` |
//! | what is read | `client` |
//! | when a response is too much, and what the canister gets of it | `reply` |
//! | a reason for no response, its reject code and text | `failure` |
//! | which request is made when | `service` |
//!
//! This crate must never know of consensus, of the state beyond the requests it is shown, or how a
//! query runs.

mod addresses;
mod client;
mod failure;
pub mod reply;
mod semaphore;
mod service;
mod target;

use ipnet::IpNet;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

pub use client::Client;
pub use failure::Failure;
pub use service::{AnswerSink, Service, Transform};

/// Requests that an operator allows beyond those to public addresses by HTTPS.
#[derive(Clone, Debug, Default)]
pub struct AccessPolicy {
    /// Plain HTTP too, which anybody on the way can read and change.
    pub http: bool,
    /// Networks that may be reached although they are not public.
    pub networks: Vec<IpNet>,
    /// Authorities that servers' certificates may come from, in addition to the built-in ones.
    pub roots: Vec<CertificateDer<'static>>,
    /// The setting that allows networks, for the log.
    pub setting: &'static str,
    /// Advice in the reject of a refused address. Empty on a node: members of a subnet agree on the
    /// text.
    pub advice: &'static str,
}

/// The certificates of a PEM file.
///
/// # Errors
/// When there are none, or one does not decode.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(certificates) if certificates.is_empty() => Err("it holds no certificate".into()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(error.to_string()),
    }
}
