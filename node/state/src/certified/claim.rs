//! The newest manifest according to a certificate, for a node that fetches that state from others.
//!
//! Parses bytes of a peer that may be faulty: everything is bounded, and the result must not be
//! trusted before the caller has verified the signature over the root.

use ic_certification::{Certificate, LookupResult};

use crate::{Height, tree::Digest};

/// The path under which the tree shows the newest manifest.
pub(super) const MANIFEST_LABEL: &[u8] = b"state_manifest";
/// The path of the hash of how the subnet's key is held.
pub(super) const KEY_LABEL: &[u8] = b"subnet_key";
/// A certificate that shows the manifest only is far smaller: a hash per level of the tree, one of
/// the first row and a few values.
pub const MANIFEST_CERTIFICATE_BYTES_MAX: usize = 16 << 10;

/// A state that the subnet vouches for, if the signature is the subnet's and over `tree`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestClaim {
    /// Root of the tree that shows the manifest.
    pub tree: Digest,
    /// Over that root.
    pub signature: [u8; 48],
    /// Of the state.
    pub height: Height,
    /// Root of its manifest.
    pub root: Digest,
    /// [`crate::SubnetKey::digest`] at the height of the tree; `None` while the key is held as the
    /// ceremony left it.
    pub key: Option<Digest>,
}

impl ManifestClaim {
    /// Parses a certificate with the paths `/state_manifest` and `/subnet_key`; `None` for anything
    /// else.
    pub fn read(certificate: &[u8]) -> Option<Self> {
        if certificate.len() > MANIFEST_CERTIFICATE_BYTES_MAX {
            return None;
        }
        let certificate: Certificate = serde_cbor_2::from_slice(certificate).ok()?;
        let value = |name: &[u8]| match certificate.tree.lookup_path([MANIFEST_LABEL, name]) {
            LookupResult::Found(value) => Some(value),
            _ => None,
        };
        // A delegation would be another subnet's business.
        if certificate.delegation.is_some() {
            return None;
        }
        // A tree that hides the key is none that a member offers.
        let key: Option<Digest> = match certificate.tree.lookup_path([KEY_LABEL]) {
            LookupResult::Found(digest) => Some(digest.try_into().ok()?),
            LookupResult::Absent => None,
            LookupResult::Unknown | LookupResult::Error => return None,
        };
        let mut number = value(b"height")?;
        let height = leb128::read::unsigned(&mut number).ok().filter(|_| number.is_empty())?;
        Some(Self {
            tree: certificate.tree.digest(),
            signature: certificate.signature.as_slice().try_into().ok()?,
            height: Height(height),
            root: value(b"root")?.try_into().ok()?,
            key,
        })
    }
}
