//! Why an operation did not end well, in classes that can be counted.

use std::{fmt, time::Duration};

use ic_agent::{
    AgentError,
    agent::{RejectResponse, agent_error::TransportError},
};

/// A class of failures. Its text is the key under which it is counted and printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// 429 or 503 with `Retry-After`: the node asks to retry later. Not an error.
    Refused(u16),
    /// No HTTP answer: connection refused, reset, ended too early.
    Transport,
    /// No answer within `--timeout`.
    Timeout,
    /// Any other HTTP status.
    Http(u16),
    /// The canister or the replica rejected the call.
    Reject { code: u8, error_code: String },
    /// The answer came and its certificate or signature does not verify.
    Certificate,
    /// A call between canisters inside an operation was rejected or could not be sent; the
    /// operation itself continued.
    InnerCall(&'static str),
    /// The run was stopped while it waited.
    Interrupted,
    /// The answer is not valid in the protocol.
    Protocol,
}

impl fmt::Display for Class {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(status) => write!(out, "refused {status}"),
            Self::Transport => write!(out, "transport"),
            Self::Timeout => write!(out, "timeout"),
            Self::Http(status) => write!(out, "http {status}"),
            Self::Reject { code, error_code } => write!(out, "reject {code} {error_code}"),
            Self::Certificate => write!(out, "certificate"),
            Self::InnerCall(what) => write!(out, "inner call {what}"),
            Self::Interrupted => write!(out, "interrupted"),
            Self::Protocol => write!(out, "protocol"),
        }
    }
}

/// One operation's failure.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    pub(crate) text: String,
    /// Delay that a refusal requested.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn new(class: Class, text: impl Into<String>) -> Self {
        Self { class, text: text.into(), retry_after: None }
    }

    /// An HTTP status that is not success. With `Retry-After`, 429 and 503 are back-pressure.
    pub(crate) fn http(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let class = match (status, retry_after) {
            (429 | 503, Some(_)) => Class::Refused(status),
            _ => Class::Http(status),
        };
        Self { class, text: String::from_utf8_lossy(body).into_owned(), retry_after }
    }

    pub(crate) fn reject(code: u8, error_code: Option<&str>, message: impl Into<String>) -> Self {
        let error_code = error_code.unwrap_or("without error code").to_owned();
        Self::new(Class::Reject { code, error_code }, message)
    }

    /// An error of `ic-agent`; `retry_after` is from the header of the last answer.
    pub(crate) fn agent(error: &AgentError, retry_after: Option<Duration>) -> Self {
        let reject = |reject: &RejectResponse| {
            Self::reject(
                reject.reject_code as u8,
                reject.error_code.as_deref(),
                &reject.reject_message,
            )
        };
        match error {
            AgentError::CertifiedReject { reject: response, .. }
            | AgentError::UncertifiedReject { reject: response, .. } => reject(response),
            AgentError::HttpError(payload) => {
                Self::http(payload.status, retry_after, &payload.content)
            }
            AgentError::TimeoutWaitingForResponse() => Self::new(Class::Timeout, error.to_string()),
            AgentError::TransportError(TransportError::Reqwest(inner)) => Self::transport(inner),
            AgentError::TransportError(_) => Self::new(Class::Transport, error.to_string()),
            AgentError::CertificateVerificationFailed()
            | AgentError::QuerySignatureVerificationFailed
            | AgentError::CertificateNotAuthorized()
            | AgentError::CertificateOutdated(_)
            | AgentError::CertificateHasTooManyDelegations
            | AgentError::MissingSignature
            | AgentError::MalformedSignature
            | AgentError::MalformedPublicKey
            | AgentError::TooManySignatures { .. }
            | AgentError::DerKeyLengthMismatch { .. }
            | AgentError::DerPrefixMismatch { .. }
            | AgentError::LookupPathAbsent(_)
            | AgentError::LookupPathUnknown(_)
            | AgentError::LookupPathError(_) => Self::new(Class::Certificate, error.to_string()),
            other => Self::new(Class::Protocol, other.to_string()),
        }
    }

    /// An error of the HTTP client, with its causes.
    pub(crate) fn transport(error: &reqwest::Error) -> Self {
        let class = if error.is_timeout() { Class::Timeout } else { Class::Transport };
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self::new(class, text)
    }

    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self.class, Class::Refused(_))
    }

    /// Whether the update may have been executed without an acknowledgement. A reject is an answer;
    /// every other failure leaves it open, refusals included: an answer may be refused after the
    /// call ran.
    pub(crate) fn may_have_executed(&self) -> bool {
        !matches!(self.class, Class::Reject { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ic_agent::agent::{RejectCode, agent_error::HttpErrorPayload};

    #[test]
    fn backpressure_needs_the_status_and_the_header() {
        let second = Some(Duration::from_secs(1));
        let class = |status, retry_after| Failure::http(status, retry_after, b"why").class;
        assert_eq!(class(503, second), Class::Refused(503));
        assert_eq!(class(429, second), Class::Refused(429));
        assert_eq!(class(503, None), Class::Http(503));
        assert_eq!(class(413, second), Class::Http(413));
        assert_eq!(Failure::http(503, second, b"why").text, "why");
        assert!(
            Failure::http(503, second, b"").is_refusal()
                && !Failure::http(503, None, b"").is_refusal()
        );
    }

    #[test]
    fn agent_errors_map_to_failure_classes() {
        let agent = |error: AgentError| Failure::agent(&error, None);
        let response = RejectResponse {
            reject_code: RejectCode::CanisterError,
            reject_message: "the whole text".into(),
            error_code: Some("IC0502".into()),
        };
        let failure = agent(AgentError::CertifiedReject { reject: response, operation: None });
        assert_eq!(failure.class.to_string(), "reject 5 IC0502");
        assert_eq!(failure.text, "the whole text");
        assert!(!failure.may_have_executed());

        assert_eq!(agent(AgentError::CertificateVerificationFailed()).class, Class::Certificate);
        assert_eq!(agent(AgentError::QuerySignatureVerificationFailed).class, Class::Certificate);
        let timeout = agent(AgentError::TimeoutWaitingForResponse());
        assert_eq!(timeout.class, Class::Timeout);
        assert!(timeout.may_have_executed());
        let payload =
            HttpErrorPayload { status: 429, content_type: None, content: b"full".to_vec() };
        let refused = Failure::agent(&AgentError::HttpError(payload), Some(Duration::from_secs(2)));
        assert_eq!(
            (refused.class.to_string(), refused.text.as_str()),
            ("refused 429".into(), "full")
        );
        assert_eq!(refused.retry_after, Some(Duration::from_secs(2)));
    }
}
