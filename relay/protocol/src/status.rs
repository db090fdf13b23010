//! Status codes of light push, filter, store and peer exchange replies.
//!
//! Purpose: one set of names; the protocols take their codes from one space, as in HTTP. Bounds:
//! nothing to bound. It must never know when a code is sent.
//!
//! Source: waku-org/specs lightpush; vacp2p/rfc-index 12, 13 and 34; codes of the reference node.

/// The enum of codes, and their numbers on the wire: one row each.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)+) => {
        /// A status code, 32 bits.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StatusCode {
            $($(#[$doc])* $name,)+
            /// A code this version does not know, as it was sent.
            Other(u32),
        }

        impl StatusCode {
            /// The number on the wire.
            pub fn code(self) -> u32 {
                match self {
                    $(Self::$name => $code,)+
                    Self::Other(code) => code,
                }
            }
        }

        impl From<u32> for StatusCode {
            fn from(code: u32) -> Self {
                match code {
                    $($code => Self::$name,)+
                    other => Self::Other(other),
                }
            }
        }
    };
}

codes! {
    /// 200: the request was carried out.
    Ok = 200,
    /// 400: the request is damaged or contradicts itself.
    BadRequest = 400,
    /// 404: a filter subscription that does not exist.
    NotFound = 404,
    /// 413: the message is larger than is relayed.
    PayloadTooLarge = 413,
    /// 420: the message is damaged or breaks a rule of the network.
    InvalidMessage = 420,
    /// 421: this node does not relay the pubsub topic.
    UnsupportedPubsubTopic = 421,
    /// 429: the rate or a pool is exhausted; try again later.
    TooManyRequests = 429,
    /// 500: a fault of this node.
    InternalError = 500,
    /// 503: the service is not available at the moment.
    ServiceUnavailable = 503,
    /// 504: no proof for the rate limit could be made.
    NoRlnProof = 504,
    /// 505: there is no peer to relay to.
    NoPeers = 505,
}

/// The code of a reply that has none.
impl Default for StatusCode {
    fn default() -> Self {
        Self::Other(0)
    }
}

impl StatusCode {
    /// Whether the code means that the request was carried out: 200 to 299.
    pub fn is_success(self) -> bool {
        (200..300).contains(&self.code())
    }
}
