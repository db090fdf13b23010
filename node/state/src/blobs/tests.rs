#![allow(clippy::unwrap_used)]
use super::*;

fn store(dir: &Path) -> BlobStore {
    BlobStore::open(dir, 1 << 20).unwrap()
}

fn hash(blob: &[u8]) -> BlobHash {
    Sha256::digest(blob).into()
}

#[test]
fn a_blob_comes_back_under_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = store(dir.path());
    for blob in [vec![], vec![1], vec![9; 1 << 20]] {
        let name = blobs.put(&blob).unwrap();
        assert_eq!(name, hash(&blob));
        assert_eq!(blobs.put(&blob).unwrap(), name);
        assert_eq!(blobs.get(&name).unwrap(), Some(blob));
        assert!(blobs.contains(&name));
    }
    blobs.sync().unwrap();
    blobs.sync().unwrap();
    assert_eq!(blobs.get(&[0; 32]).unwrap(), None);
    drop(blobs);
    assert_eq!(store(dir.path()).get(&hash(&[1])).unwrap(), Some(vec![1]));
}

#[test]
fn a_blob_over_the_limit_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let error = store(dir.path()).put(&vec![0; (1 << 20) + 1]).unwrap_err();
    assert!(error.to_string().contains("1048576"), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn damage_is_seen_on_reading_and_mended_by_writing() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = store(dir.path());
    let blob = vec![5; 200_000];
    let name = blobs.put(&blob).unwrap();
    for damaged in [vec![], vec![6; 200_000], vec![5; 199_999], vec![5; (1 << 20) + 1]] {
        fs::write(blobs.path(&name), damaged).unwrap();
        assert!(matches!(blobs.get(&name), Err(BlobError::Corrupt { .. })));
        blobs.put(&blob).unwrap();
        assert_eq!(blobs.get(&name).unwrap().unwrap(), blob);
    }
}

#[test]
fn blobs_are_joined_and_hashed_without_being_held() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = store(dir.path());
    let pieces = [vec![1; 300_000], vec![], vec![2; 65_536], vec![3]];
    let parts: Vec<_> = pieces.iter().map(|piece| blobs.put(piece).unwrap()).collect();
    let whole = pieces.concat();
    assert_eq!(blobs.digest(&parts).unwrap(), Some(hash(&whole)));
    assert_eq!(blobs.digest(&[parts[0], [9; 32]]).unwrap(), None);
    assert_eq!(blobs.digest(&[]).unwrap(), Some(hash(&[])));

    assert_eq!(blobs.join(&[parts[0], [9; 32]], &hash(&whole)).unwrap(), None);
    assert!(!blobs.contains(&hash(&whole)), "a name never stands for half a content");
    // Also where a damaged file has the name.
    for damaged in [None, Some(b"damaged".to_vec()), Some(vec![0; 2 << 20])] {
        if let Some(damaged) = damaged {
            fs::write(blobs.path(&hash(&whole)), damaged).unwrap();
        }
        assert_eq!(blobs.join(&parts, &hash(&whole)).unwrap(), Some(()));
        assert_eq!(blobs.get(&hash(&whole)).unwrap().unwrap(), whole);
    }
    let files = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(files, parts.len() + 1, "nothing temporary stays");

    fs::write(blobs.path(&parts[2]), b"damaged").unwrap();
    let error = blobs.digest(&parts).unwrap_err();
    assert!(matches!(&error, BlobError::Corrupt { path } if *path == blobs.path(&parts[2])));
}

#[test]
fn only_what_is_live_stays() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = store(dir.path());
    let names: Vec<_> = (0..5u8).map(|number| blobs.put(&[number]).unwrap()).collect();
    fs::write(dir.path().join("README"), b"not ours").unwrap();
    assert_eq!(blobs.retain(|name| *name == names[2]).unwrap(), 4);
    assert!(names.iter().all(|name| blobs.contains(name) == (*name == names[2])));
    assert!(dir.path().join("README").exists());
    blobs.sync().unwrap();
}

#[test]
fn what_a_dead_process_was_writing_is_swept_away() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tmp-1-2"), b"half").unwrap();
    let blobs = store(dir.path());
    assert!(!dir.path().join("tmp-1-2").exists());
    blobs.put(b"whole").unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_lost_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = store(&dir.path().join("blobs"));
    fs::remove_dir(dir.path().join("blobs")).unwrap();
    assert!(matches!(blobs.put(b"x"), Err(BlobError::Io { .. })));
    fs::write(dir.path().join("file"), b"").unwrap();
    assert!(BlobStore::open(&dir.path().join("file"), 1).is_err());
    assert!(BlobStore::open(&dir.path().join("file/below"), 1).is_err());
}

#[test]
fn many_threads_may_keep_the_same_blob() {
    let dir = tempfile::tempdir().unwrap();
    let blobs = store(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let blobs = &blobs;
            scope.spawn(move || {
                for number in 0..50u8 {
                    let blob = vec![number; 3_000];
                    let name = blobs.put(&blob).unwrap();
                    assert_eq!(blobs.get(&name).unwrap().unwrap(), blob);
                    if number % 10 == thread {
                        blobs.sync().unwrap();
                    }
                }
            });
        }
    });
}
