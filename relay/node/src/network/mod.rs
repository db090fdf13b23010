//! Connections: transports, multiplexers, limits, and the streams on them.

pub(crate) mod admission;
pub(crate) mod behaviour;
pub(crate) mod framing;
pub(crate) mod handler;
pub(crate) mod identified;
pub(crate) mod meter;
pub(crate) mod offers;
pub(crate) mod stream_slots;
pub(crate) mod streams;
pub(crate) mod transport;
