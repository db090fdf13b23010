//! Status codes of light push, filter, store and peer exchange replies.
//!
//! Purpose: one set of names; the protocols take their codes from one space, as in HTTP. Bounds:
//! nothing to bound. It must never know when a code is sent.
//!
//! Source: waku-org/specs lightpush; vacp2p/rfc-index 12, 13 and 34; codes of the reference node.

/// A status code, 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusCode {
    /// 200: the request was carried out.
    Ok,
    /// 400: the request is damaged or contradicts itself.
    BadRequest,
    /// 404: a filter subscription that does not exist.
    NotFound,
    /// 413: the message is larger than is relayed.
    PayloadTooLarge,
    /// 420: the message is damaged or breaks a rule of the network.
    InvalidMessage,
    /// 421: this node does not relay the pubsub topic.
    UnsupportedPubsubTopic,
    /// 429: the rate or a pool is exhausted; try again later.
    TooManyRequests,
    /// 500: a fault of this node.
    InternalError,
    /// 503: the service is not available at the moment.
    ServiceUnavailable,
    /// 504: no proof for the rate limit could be made.
    NoRlnProof,
    /// 505: there is no peer to relay to.
    NoPeers,
    /// A code this version does not know, as it was sent.
    Other(u32),
}

impl StatusCode {
    /// The number on the wire.
    pub fn code(self) -> u32 {
        match self {
            Self::Ok => 200,
            Self::BadRequest => 400,
            Self::NotFound => 404,
            Self::PayloadTooLarge => 413,
            Self::InvalidMessage => 420,
            Self::UnsupportedPubsubTopic => 421,
            Self::TooManyRequests => 429,
            Self::InternalError => 500,
            Self::ServiceUnavailable => 503,
            Self::NoRlnProof => 504,
            Self::NoPeers => 505,
            Self::Other(code) => code,
        }
    }

    /// Whether the code means that the request was carried out: 200 to 299.
    pub fn is_success(self) -> bool {
        (200..300).contains(&self.code())
    }
}

impl From<u32> for StatusCode {
    fn from(code: u32) -> Self {
        match code {
            200 => Self::Ok,
            400 => Self::BadRequest,
            404 => Self::NotFound,
            413 => Self::PayloadTooLarge,
            420 => Self::InvalidMessage,
            421 => Self::UnsupportedPubsubTopic,
            429 => Self::TooManyRequests,
            500 => Self::InternalError,
            503 => Self::ServiceUnavailable,
            504 => Self::NoRlnProof,
            505 => Self::NoPeers,
            other => Self::Other(other),
        }
    }
}
