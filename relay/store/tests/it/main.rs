//! The store as its callers meet it: on real files, through kills, power cuts, damage and full
//! disks.
#![allow(clippy::unwrap_used)]

mod clock;
mod common;
mod crash;
mod damage;
mod full;
mod paging;
mod stories;
