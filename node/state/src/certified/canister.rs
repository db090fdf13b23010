//! `/canister/<id>`: what the tree says of one canister.

use std::{borrow::Cow, sync::Arc};

use ic_principal::Principal;

use crate::{
    CanisterState, CustomSection, InstalledModule,
    tree::{CertifiedValue, Digest, LabeledValue, Subtree},
};

/// Digest of the subtree `/canister/<id>/metadata`, to be kept with the sections.
pub fn metadata_digest(sections: &[CustomSection]) -> Digest {
    metadata_subtree(sections).digest()
}

fn metadata_subtree(sections: &[CustomSection]) -> Subtree<'_> {
    Subtree::node(
        sections
            .iter()
            .map(|section| {
                (Cow::Borrowed(section.name.as_bytes()), Subtree::leaf(&section.content))
            })
            .collect(),
    )
}

/// The controllers as the specification's tagged list.
pub(super) fn controllers_cbor(controllers: &[Principal]) -> Vec<u8> {
    let controllers: Vec<_> =
        controllers.iter().map(|it| serde_bytes::Bytes::new(it.as_slice())).collect();
    super::cbor(&controllers, true)
}

/// The subtree `/canister/<id>/metadata`. It is not small, so its digest is computed when the
/// module is installed.
impl CertifiedValue for InstalledModule {
    fn subtree(&self) -> Subtree<'_> {
        metadata_subtree(&self.info.custom_sections)
    }

    fn digest(&self) -> Digest {
        self.metadata_digest
    }
}

/// All of it is hashed again when something in it changed, so it is small. Most messages change
/// nothing in it: see [`LabeledValue::hashes_like`].
impl CertifiedValue for Arc<CanisterState> {
    fn subtree(&self) -> Subtree<'_> {
        let label = |name: &'static str| Cow::Borrowed(name.as_bytes());
        let controllers = controllers_cbor(&self.controllers);
        let mut children = vec![
            (label("certified_data"), Subtree::leaf(&self.certified_data)),
            (label("controllers"), Subtree::Leaf(Cow::Owned(controllers))),
            (label("canister_creation_timestamp"), Subtree::nat(self.created_at.0)),
        ];
        if let Some(module) = self.module() {
            children.push((label("module_hash"), Subtree::leaf(&module.hash.0)));
            if !module.info.custom_sections.is_empty() {
                children.push((label("metadata"), Subtree::Shared(module)));
            }
        }
        if let Some(time) = self.installed_at {
            children.push((label("last_install_timestamp"), Subtree::nat(time.0)));
        }
        Subtree::node(children)
    }
}

impl LabeledValue for Arc<CanisterState> {
    type Summary = ();

    fn label(&self) -> &[u8] {
        self.id.as_slice()
    }

    fn summary(&self) {}

    /// Of the data that the tree shows, modules count by their hashes.
    fn hashes_like(&self, other: &Self) -> bool {
        let module = |canister: &CanisterState| {
            let module = canister.module()?;
            let has_sections = !module.info.custom_sections.is_empty();
            Some((module.hash, module.metadata_digest, has_sections))
        };
        self.certified_data == other.certified_data
            && self.controllers == other.controllers
            && self.created_at == other.created_at
            && self.installed_at == other.installed_at
            && module(self) == module(other)
    }
}
