//! Durable state: kills, power cuts and messages in queues; and the root kept from round to round.
#![allow(clippy::unwrap_used)]

mod incremental_root;
mod power_cut;
mod queued_messages;
mod store_crash;
