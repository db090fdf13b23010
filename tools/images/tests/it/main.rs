//! The image cache from outside: real files, real processes, the distribution's own tools.

#![allow(clippy::unwrap_used)]

mod full;
mod hostile;
mod killed;
mod kit;
mod overlays;
mod stories;
