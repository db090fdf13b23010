//! The data folder is its owner's alone, and addresses may name hosts.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::harness::*;

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Files and folders at and below `path`, with their modes, that group or others have access to.
fn open_to_others(path: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    if mode(path) & 0o077 != 0 {
        found.push((path.to_owned(), format!("{:o}", mode(path))));
    }
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            found.extend(open_to_others(&entry.unwrap().path()));
        }
    }
    found
}

// Promise: P16 - The data folder of a node is readable by its owner only.
#[tokio::test]
async fn data_folder_is_readable_by_its_owner_only() {
    let mut node = Node::start().await;
    let agent = node.agent(1).await;
    let counter = deploy(&agent, "counter-c.wasm").await;
    update(&agent, counter, "inc", vec![]).await.unwrap();
    node.restart().await;
    assert_eq!(open_to_others(&node.data), []);
    for name in ["pages", "state", "blocks"] {
        assert!(fs::read_dir(node.data.join(name)).unwrap().next().is_some(), "{name} is empty");
    }
    // A folder that another version of the program made.
    fs::set_permissions(&node.data, fs::Permissions::from_mode(0o755)).unwrap();
    node.restart().await;
    assert_eq!(mode(&node.data), 0o700);
}

// Promise: P16 - A node listens at a host name.
#[tokio::test]
async fn host_name_can_be_listened_at() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::prepared(folder.path().join("data"), "512MiB", vec![]);
    node.listen = "localhost:0".into();
    node.launch().await;
    assert!(reqwest::get(format!("{}/health", node.url)).await.unwrap().status().is_success());
    let output = thimble().args(["config", "--listen", "localhost:8080"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("listen = \"127.0.0.1:8080\""), "{text}");
    let output =
        thimble().args(["config", "--listen", "no-such-host.invalid:80"]).output().unwrap();
    assert!(!output.status.success());
    let refusal = String::from_utf8(output.stderr).unwrap();
    assert!(refusal.contains("no-such-host.invalid"), "{refusal}");
}
