//! Full disks and directories that cannot be written: a typed error, a store that continues, and
//! correct content.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::Command,
};

use pages::{MemoryId, PAGE_BYTES, PagesError};
use testing::SmallDisk;

use crate::common::*;

const A: MemoryId = MemoryId(1);
const LIMIT_DIR: &str = "PAGES_LIMIT_DIR";
const NOBODY: u32 = 65_534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

// Promise: P7 - A full disk stops writes of canister memory and nothing else.
#[test]
fn a_full_disk_stops_writes_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), "2m") else { return };
    let path = dir.path().join("pages");
    let mut index = Index::new();
    let store = open(&path, &index).unwrap();
    store.create(A, 1 << 30).unwrap();
    put(&store, A, &[(1000, 200)], 1).unwrap();
    let reader = |store: &pages::PageStore| {
        let layout = store.layout(A).unwrap();
        let mut bytes = vec![0; 200 * PAGE];
        pages::read_pages(&layout, 1000, &mut bytes).unwrap();
        assert!(bytes == page(1).repeat(200));
    };
    assert!(!store.is_disk_low().unwrap());

    // Something else fills the disk.
    let filler = dir.path().join("filler");
    let room = store.disk_free_bytes().unwrap() - 10 * PAGE_BYTES;
    fs::write(&filler, vec![1; room as usize]).unwrap();
    assert!(store.is_disk_low().unwrap());

    // The worker's own write fails; the message fails, its target is dropped, its pages are
    // returned.
    let target = store.reserve(A, 100).unwrap();
    let error = write(&target, &[(0, 100)], 2).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    drop(target);
    reader(&store);

    // A checkpoint still works: it cuts off what the failed message wrote. The fold does not find
    // room, and changes nothing.
    checkpoint(&store, &mut index);
    for _ in 0..2 {
        let error = store.fold(MIB).unwrap_err();
        assert!(matches!(error, PagesError::DiskFull { .. }) && error.can_heal(), "{error}");
        assert!(
            error.to_string().contains("1.base") && error.to_string().contains("free disk space"),
            "{error}"
        );
    }
    reader(&store);
    assert_eq!(store.layout(A).unwrap().runs[..], index[&A].0.runs[..]);
    drop(store);
    let store = open(&path, &index).unwrap();
    reader(&store);

    fs::remove_file(filler).unwrap();
    fold_all(&store);
    checkpoint(&store, &mut index);
    assert_eq!(store.delta_bytes(), 0);
    reader(&store);
}

/// The body of the child below; returns at once when it is run as a test.
#[test]
fn child() {
    let Ok(dir) = std::env::var(LIMIT_DIR) else { return };
    // SAFETY: ignoring a signal installs no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let mut index = Index::new();
    let store = open(Path::new(&dir), &index).unwrap();
    store.create(A, 1 << 20).unwrap();
    put(&store, A, &[(30, 20)], 1).unwrap();
    let limit = libc::rlimit { rlim_cur: 160 << 10, rlim_max: 160 << 10 };
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);

    let error = store.create(MemoryId(2), 1 << 20).unwrap_err();
    assert!(matches!(error, PagesError::FileTooLarge { .. }), "{error}");
    assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
    assert_eq!(file_names(Path::new(&dir)), ["1.0", "1.base"]);
    assert_eq!(store.ids(), [A]);

    let target = store.reserve(A, 100).unwrap();
    assert_eq!(write(&target, &[(0, 100)], 2).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    drop(target);
    put(&store, A, &[(2, 2)], 3).unwrap();
    checkpoint(&store, &mut index);
    // Pages 40 to 49 of the base are beyond the limit.
    assert!(matches!(store.fold(MIB), Err(PagesError::FileTooLarge { .. })));
    let mut model = Model::from([(A, vec![0; 256])]);
    apply(&mut model, A, &[(30, 20)], 1);
    apply(&mut model, A, &[(2, 2)], 3);
    assert_same(&store, &model);
    drop(store);
    assert_same(&open(Path::new(&dir), &index).unwrap(), &model);
    println!("the child is done");
}

#[test]
fn a_file_size_limit_is_an_error_too() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "disk::child", "--nocapture", "--test-threads=1"])
        .env(LIMIT_DIR, dir.path())
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("the child is done"), "{text}");
}

/// Runs `f` on a thread that is not root, even if the tests run as root.
fn unprivileged(f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if is_root() {
                // SAFETY: no memory is passed. The file system identity is per thread, and this
                // thread ends with `f`.
                unsafe { libc::setfsuid(NOBODY) };
            }
            f();
        });
    });
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("pages");
    fs::create_dir(&path).unwrap();
    if is_root() {
        chown(&path, Some(NOBODY), None).unwrap();
    }
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    unprivileged(|| {
        let mut index = Index::new();
        let store = open(&path, &index).unwrap();
        store.create(A, MIB).unwrap();
        put(&store, A, &[(0, 1)], 1).unwrap();
        checkpoint(&store, &mut index);

        mode(0o555);
        let not_writable = |error: PagesError| {
            assert!(matches!(error, PagesError::NotWritable { .. }), "{error}");
            assert!(error.to_string().contains("check the owner"), "{error}");
        };
        not_writable(store.reserve(A, 1).unwrap_err());
        not_writable(store.create(MemoryId(2), MIB).unwrap_err());
        let mut model = Model::from([(A, vec![0; 256])]);
        apply(&mut model, A, &[(0, 1)], 1);
        assert_same(&store, &model);

        // A file that cannot be removed stays accounted for and is tried again.
        fold_all(&store);
        checkpoint(&store, &mut index);
        assert_eq!((store.delta_bytes(), store.stats().unlink_failures), (PAGE_BYTES, 1));
        mode(0o755);
        checkpoint(&store, &mut index);
        assert_eq!((store.delta_bytes(), store.stats().releasable_bytes), (0, 0));
        put(&store, A, &[(3, 1)], 2).unwrap();
        apply(&mut model, A, &[(3, 1)], 2);
        assert_same(&store, &model);
    });
    assert!(matches!(
        open(&dir.path().join("no/such/parent"), &Index::new()),
        Err(PagesError::Io { .. })
    ));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(matches!(open(&dir.path().join("file"), &Index::new()), Err(PagesError::Io { .. })));
}

#[test]
fn a_read_only_file_system_is_found_at_start_up() {
    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), "1m,ro") else { return };
    let error = open(dir.path(), &Index::new()).unwrap_err();
    assert!(matches!(error, PagesError::NotWritable { .. }), "{error}");
    let error = open(&dir.path().join("pages"), &Index::new()).unwrap_err();
    assert!(matches!(error, PagesError::NotWritable { .. }), "{error}");
}
