//! Durable state: kills, power cuts and messages in queues.
#![allow(clippy::unwrap_used)]

mod power_cut;
mod queued_messages;
mod store_crash;
