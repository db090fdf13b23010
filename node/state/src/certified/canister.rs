//! `/canister/<id>`: what the tree says of one canister.

use std::{borrow::Cow, sync::Arc};

use ic_principal::Principal;

use crate::{
    CanisterId, CustomSection, ModuleHash, Time,
    tree::{CertifiedValue, Digest, LabeledValue, Subtree},
};

/// Facts about a canister that the certified tree shows.
///
/// All of it is hashed again whenever the canister changed in any way, so it is small; metadata
/// sections, which are not, come with a digest that was computed when the module was installed.
pub trait CanisterFacts {
    /// Id of the canister, its label under `/canister`.
    fn canister_id(&self) -> &CanisterId;
    /// `ic0.certified_data_set`; at most 32 bytes.
    fn certified_data(&self) -> &[u8];
    /// In any order that is the same on every node.
    fn controllers(&self) -> impl Iterator<Item = &Principal>;
    /// Of the installed module.
    fn module_hash(&self) -> Option<&ModuleHash>;
    /// Sections of the installed module, ordered by name, and [`metadata_digest`] of them.
    fn metadata(&self) -> Option<(&[CustomSection], &Digest)>;
    /// When the canister was created.
    fn creation_time(&self) -> Option<Time>;
    /// When code was last installed, reinstalled or upgraded; `None` for an empty canister.
    fn last_install_time(&self) -> Option<Time>;

    /// One metadata section.
    fn metadata_section(&self, name: &str) -> Option<&CustomSection> {
        let (sections, _) = self.metadata()?;
        sections.iter().find(|section| section.name == name)
    }
}

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
pub(super) fn controllers_cbor<'a>(controllers: impl Iterator<Item = &'a Principal>) -> Vec<u8> {
    let controllers: Vec<_> =
        controllers.map(|principal| serde_bytes::Bytes::new(principal.as_slice())).collect();
    super::cbor(&controllers, true)
}

impl<C: CanisterFacts> CertifiedValue for Arc<C> {
    fn subtree(&self) -> Subtree<'_> {
        let label = |name: &'static str| Cow::Borrowed(name.as_bytes());
        let mut children = vec![
            (label("certified_data"), Subtree::leaf(self.certified_data())),
            (label("controllers"), Subtree::Leaf(Cow::Owned(controllers_cbor(self.controllers())))),
        ];
        if let Some(hash) = self.module_hash() {
            children.push((label("module_hash"), Subtree::leaf(&hash.0)));
        }
        if let Some((sections, digest)) =
            self.metadata().filter(|(sections, _)| !sections.is_empty())
        {
            children.push((
                label("metadata"),
                Subtree::Known(*digest, Box::new(metadata_subtree(sections))),
            ));
        }
        if let Some(time) = self.creation_time() {
            children.push((label("canister_creation_timestamp"), Subtree::nat(time.0)));
        }
        if let Some(time) = self.last_install_time() {
            children.push((label("last_install_timestamp"), Subtree::nat(time.0)));
        }
        Subtree::node(children)
    }
}

impl<C: CanisterFacts> LabeledValue for Arc<C> {
    type Summary = ();

    fn label(&self) -> &[u8] {
        self.canister_id().as_slice()
    }

    fn summary(&self) {}
}
