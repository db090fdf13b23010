//! `/canister/<id>`: what the tree says of one canister.

use std::{borrow::Cow, sync::Arc};

use ic_principal::Principal;

use crate::{
    CanisterState, CustomSection,
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

/// All of it is hashed again whenever the canister changed in any way, so it is small; metadata
/// sections, which are not, come with a digest that was computed when the module was installed.
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
            let sections = &module.info.custom_sections;
            if !sections.is_empty() {
                let below = Box::new(metadata_subtree(sections));
                children.push((label("metadata"), Subtree::Known(module.metadata_digest, below)));
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
}
