//! HTTPS outcalls, as one node makes them: requests of canisters to servers outside.
//!
//! ```text
//! open requests -> service: place, memory -> target: URL, headers -> addresses: which may be reached
//!   -> client: connection, TLS, response within its bounds -> transform (a query) -> answer
//! ```
//!
//! What a node finds out is its answer alone; whether it is the subnet's is agreed elsewhere. So two
//! nodes that find the same must say the same: a failure is told in one of a few fixed texts
//! ([`Failure`]), and what the machine says of it goes to the log. What this machine lacks
//! (descriptors, a query worker) is no answer: the request is made again.
//!
//! Bounds: requests made at once, and what they hold together, by `limits`; the response of each by
//! what the canister asked for, while it is read, headers included; time for each. A request that
//! finds no room waits. Redirects are not followed, and bodies are handed on as they came, packed or
//! not. One connection serves one request: nothing is kept between requests.
//!
//! | to change | start at |
//! |---|---|
//! | which addresses may be reached | `addresses` |
//! | what is sent | `target` |
//! | what is read | `client` |
//! | when a response is too much, and what the canister gets of it | `reply` |
//! | which request is made when | `service` |
//!
//! This crate must never know of consensus, of the state beyond the requests it is shown, or how a
//! query runs.

mod addresses;
mod client;
mod failure;
pub mod reply;
mod service;
mod target;
mod turns;

use ipnet::IpNet;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

pub use client::Client;
pub use failure::Failure;
pub use service::{Answers, NotTransformed, Service, Transform};

/// What an operator allows beyond requests to public addresses by HTTPS.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Plain HTTP too, which anybody on the way can read and change.
    pub http: bool,
    /// Networks that may be reached although they are not public.
    pub networks: Vec<IpNet>,
    /// Authorities that servers' certificates may come from, beside those that are built in.
    pub roots: Vec<CertificateDer<'static>>,
    /// The setting that allows networks, for the log.
    pub setting: &'static str,
    /// What canisters read about it after the refusal of an address. Empty on a node: members of a
    /// subnet agree on the text.
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
