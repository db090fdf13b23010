//! A full disk is an error with a name, costs nothing that was durable, and is over when there is
//! room again.
//!
//! The limit on the size of files stands in for the disk: the kernel refuses writes beyond it as it
//! does on a full disk. It holds for the whole process, so this file has one test.
#![allow(clippy::unwrap_used)]

use ic_principal::Principal;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use state::{BlobError, BlobStore, CheckpointDelta, Height, StateStore, StoreError};

fn file_bytes_max(bytes: Option<u64>) {
    let hard = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: bytes.or(hard), maximum: hard }).unwrap();
}

fn checkpoint(height: u64, bytes: usize) -> CheckpointDelta<'static> {
    let canisters = (0..8u8)
        .map(move |number| (Principal::from_slice(&[number, 1]), Some(vec![height as u8; bytes])));
    CheckpointDelta {
        height: Height(height),
        metadata: vec![height as u8],
        canisters: Box::new(canisters.map(Ok)),
        messages: Box::new(std::iter::empty()),
        history: Box::new(std::iter::empty()),
        memories: vec![],
        written: vec![],
    }
}

// Promise: P7 - The state store refuses writes on a full disk and recovers.
#[test]
fn a_full_disk_refuses_and_recovers() {
    // SAFETY: ignoring a signal has no handler that could run anywhere; no other thread of this
    // process is concerned with it.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let dir = tempfile::tempdir().unwrap();
    let store = StateStore::open(&dir.path().join("state"), 1 << 20).unwrap();
    let blobs = BlobStore::open(&dir.path().join("blobs"), 64 << 20).unwrap();
    store.write(checkpoint(1, 50_000)).unwrap();

    for _ in 0..3 {
        file_bytes_max(Some(4 << 20));
        let error = store.write(checkpoint(2, 4 << 20)).unwrap_err();
        assert!(matches!(error, StoreError::DiskFull { .. }), "{error}");
        let error = blobs.put(&vec![7; 5 << 20]).unwrap_err();
        assert!(matches!(error, BlobError::DiskFull { .. }), "{error}");
        file_bytes_max(None);
        let loaded = store.load().unwrap().unwrap();
        assert_eq!((loaded.height, loaded.metadata.as_slice()), (Height(1), [1u8].as_slice()));
        assert!(loaded.canisters().unwrap().all(|record| record.unwrap().1 == vec![1; 50_000]));
    }
    store.write(checkpoint(2, 4 << 20)).unwrap();
    assert_eq!(store.load().unwrap().unwrap().height, Height(2));
    let name = blobs.put(&vec![7; 5 << 20]).unwrap();
    assert_eq!(blobs.get(&name).unwrap().unwrap().len(), 5 << 20);
    assert_eq!(
        std::fs::read_dir(dir.path().join("blobs")).unwrap().count(),
        1,
        "nothing half written stays"
    );
}
