//! Outcalls between members: shares of the subnet's signature on each member's answers.
//!
//! Each member signs its first answer to a request, and repeats the share every second while the
//! request is open, so that lost messages are replaced. When no answer can reach the threshold any
//! more, whatever the unheard members say, a member signs that too: a separate form of answer, the
//! same on all members. Both may occur together, where a member sends different shares to different
//! peers; the one in a block first counts.
//!
//! A request that one member makes alone is answered by that member: it sends its answer to all
//! members, and they sign that it is that member's answer, if it is within the bounds of the
//! request, whether they have room to keep it or not.
//!
//! A member whose share is invalid is cut off for a while, and its shares do not count while the
//! committee is the same. When another committee begins, all shares are made anew.
//!
//! # Bounds
//!
//! Shares are kept of requests that are open, of [`actor::AHEAD`] numbers beyond (members execute
//! at different times), and of each member one on an answer and one on a divergence. A message has
//! [`ingress::SHARES_MAX`] shares or one answer. Per peer and second, shares and bytes of answers
//! are metered ([`super::peers`]).

mod actor;
mod collected;
mod config;
mod ingress;
mod send_queue;

#[cfg(test)]
pub(super) use self::ingress::samples;
pub(super) use self::{
    actor::Agreement,
    config::{Config, NodeIds},
    ingress::Message,
};
