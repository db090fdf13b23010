//! Reasons for a missing response, in texts that are the same on every node that has the same
//! failure. They contain parts of the request and agreed values, and nothing of one node.
//!
//! Members agree on a text only while enough of them give the same one, and no version covers it: a
//! request that fails while a subnet is upgraded to a build with another text has no consensus.

use state::{OutcallAnswer, Reject, RejectCode};
use thiserror::Error;

/// See the module. The calling canister receives these texts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum Failure {
    #[error("Failed to parse URL")]
    Url,
    #[error("Url need to specify https scheme")]
    Scheme,
    #[error("Failed to parse http header {0}")]
    Header(usize),
    /// Private, local, or otherwise none that a canister may reach.
    #[error("Connecting to {0} is not allowed: it has no public address{1}")]
    Address(String, &'static str),
    /// No name, no route, or no answer.
    #[error("Connecting to {0} failed")]
    Connect(String),
    /// No certificate that counts, or no common version.
    #[error("TLS with {0} failed")]
    Tls(String),
    /// The data is not an HTTP response, or ended early.
    #[error("The http request to {0} failed")]
    Http(String),
    #[error("Timeout expired")]
    Time,
    #[error("Header size exceeds specified response size limit {0}")]
    HeaderBytes(u64),
    #[error("Http body exceeds size limit of {0} bytes.")]
    BodyBytes(u64),
    #[error("The http response has too many or too large headers")]
    Headers,
    /// Header values are text in the interface.
    #[error("The http response has a header that is no UTF-8 text")]
    HeaderText,
    #[error("Transformed http response exceeds limit: {0}")]
    Transformed(u64),
}

impl Failure {
    /// As the calling canister gets it.
    pub fn reject(&self) -> Reject {
        let code = match self {
            // As on the public network, an address that is refused is a failure to connect.
            Self::Address(..) | Self::Connect(_) | Self::Tls(_) | Self::Http(_) => {
                RejectCode::SysTransient
            }
            _ => RejectCode::SysFatal,
        };
        OutcallAnswer::reject(code, self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise: P12 - A refused address is a transient reject.
    #[test]
    fn a_refused_address_is_a_transient_reject() {
        let refused = Failure::Address("10.0.0.1:443".into(), "").reject();
        assert_eq!(refused.code, RejectCode::SysTransient);
        // Members of a subnet with different versions of the program agree on it.
        let text = "Connecting to 10.0.0.1:443 is not allowed: it has no public address";
        assert_eq!(refused.message, text);
        assert_eq!(Failure::Url.reject().code, RejectCode::SysFatal);
    }
}
