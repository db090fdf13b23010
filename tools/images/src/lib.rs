//! Disks for any number of virtual machines from one image: a content-addressed cache of base
//! images, and copy-on-write overlays of them.
//!
//! An image file (raw or qcow2, plain or packed) is added once and becomes a *base*: a read-only
//! disk in the cache, named by the SHA-256 of the file it came from and by its form ([`BaseId`]).
//! Every machine gets an *overlay*: a small qcow2 file that holds what this machine has written,
//! over the base that all share.
//!
//! ```text
//! CACHE/format                  version of this layout, and the cache's own random id
//! CACHE/bases/ID/disk.raw       the base, mode 0444 (or disk.qcow2)
//! CACHE/bases/ID/base.json      what it is; the folder is renamed into place with both files
//! CACHE/bases/ID/used           its time is when the base was last used
//! CACHE/overlays/ID/HASH        symbolic link to an overlay of the base
//! CACHE/locks/NAME.lock         one per base, one per overlay while it is made
//! CACHE/scratch/ID.RANDOM/      work under the lock of ID; without its holder, rubbish
//! CACHE/known/HASH              which hash an unchanged file has
//! ```
//!
//! Rules that hold at any instruction, whatever is killed:
//!
//! - A base is there when `bases/ID` is: that folder appears by one rename, after everything in it
//!   was synced, and disappears by one rename. Files in `scratch` never count as a base.
//! - `scratch/ID.*` is made and removed only under the exclusive lock of ID. So the holder of the
//!   lock may remove the remains of an earlier holder.
//! - An overlay is made under the shared lock of its base, which is removed under the exclusive
//!   one; its link is there before the overlay is.
//!
//! Bounds: the size of an unpacked disk ([`Settings::limit_bytes`]), the room left on the file
//! system ([`Settings::reserve_bytes`]), layers of packing, entries of an archive, memory of
//! decoders, time and memory of `qemu-img`; each is a constant with its reason where it is used.
//!
//! Must never know: machines, networks, or the content of a disk.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod add;
pub mod bench;
mod cache;
mod collect;
pub mod command;
mod error;
mod files;
mod hash_cache;
mod id;
mod lock;
mod overlay;
mod progress;
pub mod qcow2;
mod qemu_img;
mod record;
mod scratch;
mod settings;
mod source;
mod sparse;
pub mod tar_disk;
mod verify;

pub use add::{AddResult, Packing};
pub use cache::{Cache, Entry, State};
pub use collect::{CollectResult, Keep};
pub use error::Error;
pub use id::{BaseId, Form};
pub use overlay::{Overlay, OverlayOptions, OverlayOrigin};
pub use record::Base;
pub use settings::{Settings, Stop};
pub use source::{Layers, open as open_layers};
pub use verify::{Finding, VerifyResult};

/// Result of functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
