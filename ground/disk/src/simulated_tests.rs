#![allow(clippy::unwrap_used)]

use super::*;

fn disk(seed: u64) -> (tempfile::TempDir, SimulatedDisk) {
    let folder = tempfile::tempdir().unwrap();
    let disk = SimulatedDisk::new(&folder.path().join("disk"), seed).unwrap();
    (folder, disk)
}

fn path(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    folder.path().join("disk").join(name)
}

#[test]
fn what_was_synced_stays_and_what_was_not_may_stay_go_or_tear() {
    let (mut kept, mut lost, mut torn, mut short) = (0, 0, 0, 0);
    for seed in 0..200 {
        let (folder, disk) = disk(seed);
        let path = path(&folder, "file");
        let file = disk.open(&path, Open::Create).unwrap();
        file.write_at(&[1; 8192], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_folder(path.parent().unwrap()).unwrap();
        file.write_at(&[2; 8192], 4096).unwrap();
        disk.cut_power().unwrap();
        assert!(file.length().is_err(), "a handle of before the cut");
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[..4096], [1; 4096], "unchanged since the sync");
        match &bytes[4096..8192] {
            page if page.iter().all(|byte| *byte == 2) => kept += 1,
            page if page.iter().all(|byte| *byte == 1) => lost += 1,
            page => {
                assert!(
                    page.chunks(SECTOR)
                        .all(|sector| sector == [1; SECTOR] || sector == [2; SECTOR])
                );
                torn += 1;
            }
        }
        short += u32::from(bytes.len() < 12_288);
        assert!(bytes[8192..].iter().all(|byte| matches!(byte, 0 | 2)));
    }
    assert!(kept > 20 && lost > 20 && torn > 20 && short > 20, "{kept} {lost} {torn} {short}");
}

#[test]
fn names_are_durable_with_their_folder_only() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let (folder, disk) = disk(seed);
        let (a, b) = (path(&folder, "a"), path(&folder, "b"));
        disk.open(&a, Open::Create).unwrap().write_at(b"old", 0).unwrap();
        disk.sync_folder(a.parent().unwrap()).unwrap();
        let file = disk.open(&b, Open::Create).unwrap();
        file.write_at(b"new", 0).unwrap();
        file.sync_all().unwrap();
        disk.rename(&b, &a).unwrap();
        assert_eq!(fs::read(&a).unwrap(), b"new");
        disk.cut_power().unwrap();
        let names = disk.list(a.parent().unwrap()).unwrap().len();
        let bytes = disk.open(&a, Open::Read).unwrap().length().unwrap();
        assert!(bytes == 3 || bytes == 0 || bytes < 3);
        let renamed = fs::read(&a).unwrap() == b"new";
        assert!(!renamed || names == 1, "the file is under one name");
        seen.insert((renamed, names));
        // Once the folder is synced nothing is left to chance.
        disk.open(&b, Open::Truncate).unwrap().sync_all().unwrap();
        disk.remove(&a).unwrap();
        disk.sync_folder(a.parent().unwrap()).unwrap();
        assert_eq!(disk.cut_power().unwrap().names, 0);
        assert_eq!(disk.list(a.parent().unwrap()).unwrap(), [b]);
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(false, 1), (false, 2), (true, 1)]);
}

#[test]
fn a_cut_off_end_may_come_back_whole_and_never_mixed_up() {
    for seed in 0..100 {
        let (folder, disk) = disk(seed);
        let path = path(&folder, "file");
        let file = disk.open(&path, Open::Create).unwrap();
        file.write_at(&[7; 20_000], 0).unwrap();
        file.sync_all().unwrap();
        disk.sync_folder(path.parent().unwrap()).unwrap();
        file.set_len(5_000).unwrap();
        disk.cut_power().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert!((5_000..=20_000).contains(&bytes.len()));
        assert!(bytes[..5_000].iter().all(|byte| *byte == 7));
        let file = disk.open(&path, Open::Write).unwrap();
        file.set_len(100).unwrap();
        file.sync_all().unwrap();
        disk.cut_power().unwrap();
        assert_eq!(fs::read(&path).unwrap(), [7; 100]);
    }
}

#[test]
fn what_a_failed_sync_dropped_is_not_covered_by_a_later_one() {
    let mut lost = 0;
    for seed in 0..100 {
        let (folder, disk) = disk(seed);
        let path = path(&folder, "file");
        let file = disk.open(&path, Open::Create).unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        file.sync_all().unwrap();
        disk.sync_folder(path.parent().unwrap()).unwrap();
        file.write_at(&[2; 4096], 0).unwrap();
        disk.fail_syncs(1);
        assert!(file.sync_data().is_err());
        file.sync_data().unwrap();
        disk.cut_power().unwrap();
        lost += u32::from(fs::read(&path).unwrap() != [2; 4096]);
        // Written again it is.
        let file = disk.open(&path, Open::Write).unwrap();
        file.write_at(&[3; 4096], 0).unwrap();
        file.sync_data().unwrap();
        disk.cut_power().unwrap();
        assert_eq!(fs::read(&path).unwrap(), [3; 4096]);
    }
    assert!((20..=95).contains(&lost), "{lost} of 100");
}

#[test]
fn what_others_append_is_durable_with_the_next_sync_only() {
    let (mut kept, mut lost, mut torn, mut short) = (0, 0, 0, 0);
    for seed in 0..200 {
        let (folder, disk) = disk(seed);
        let path = path(&folder, "file");
        let others = disk.open_raw(&path, Open::New).unwrap();
        assert_eq!(
            disk.open_raw(&path, Open::New).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        others.write_all_at(&[1; 6_000], 0).unwrap();
        disk.raw(&path, &others).sync_all().unwrap();
        disk.sync_folder(path.parent().unwrap()).unwrap();
        others.write_all_at(&[2; 8_288], 6_000).unwrap();
        disk.cut_power().unwrap();
        let bytes = fs::read(&path).unwrap();
        assert_eq!(bytes[..6_000], [1; 6_000], "what was synced");
        assert!(bytes[6_000..].iter().all(|byte| matches!(byte, 0 | 2)));
        match bytes.get(8_192..12_288) {
            None => short += 1,
            Some(page) if page.iter().all(|byte| *byte == 2) => kept += 1,
            Some(page) if page.iter().all(|byte| *byte == 0) => lost += 1,
            Some(page) => {
                assert!(
                    page.chunks(SECTOR)
                        .all(|sector| sector == [0; SECTOR] || sector == [2; SECTOR])
                );
                torn += 1;
            }
        }
    }
    assert!(kept > 10 && lost > 10 && torn > 10 && short > 20, "{kept} {lost} {torn} {short}");
}

#[test]
fn a_sparse_file_comes_back_sparse_and_costs_what_was_written_to_it() {
    const LENGTH: u64 = 1 << 40;
    for seed in 0..20 {
        let (folder, disk) = disk(seed);
        let path = path(&folder, "file");
        let file = disk.open_raw(&path, Open::New).unwrap();
        disk.raw(&path, &file).set_len(LENGTH).unwrap();
        disk.cut_power().unwrap();
        let file = disk.open_raw(&path, Open::Create).unwrap();
        disk.raw(&path, &file).set_len(LENGTH).unwrap();
        disk.raw(&path, &file).write_at(&[1; 8_192], LENGTH / 2).unwrap();
        disk.raw(&path, &file).sync_data().unwrap();
        disk.sync_folder(path.parent().unwrap()).unwrap();
        disk.raw(&path, &file).clear(LENGTH / 2, 4_096).unwrap();
        let mut page = [9; 4_096];
        file.read_exact_at(&mut page, LENGTH / 2).unwrap();
        assert_eq!(page, [0; 4_096]);
        disk.cut_power().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), LENGTH);
        let file = File::open(&path).unwrap();
        file.read_exact_at(&mut page, LENGTH / 2).unwrap();
        assert!(page.chunks(SECTOR).all(|sector| sector == [0; SECTOR] || sector == [1; SECTOR]));
        file.read_exact_at(&mut page, LENGTH / 2 + 4_096).unwrap();
        assert_eq!(page, [1; 4_096]);
    }
}

#[test]
fn a_folder_that_is_removed_comes_back_in_part_until_its_own_is_synced() {
    let mut left = BTreeSet::new();
    for seed in 0..100 {
        let (folder, disk) = disk(seed);
        let inner = path(&folder, "inner");
        disk.create_folder(&inner).unwrap();
        for name in ["a", "b"] {
            disk.open(&inner.join(name), Open::Create).unwrap().sync_all().unwrap();
        }
        disk.sync_folder(&inner).unwrap();
        disk.remove_folder(&inner).unwrap();
        assert!(!inner.exists());
        disk.cut_power().unwrap();
        left.insert(["a", "b"].map(|name| inner.join(name).exists()));
        disk.create_folder(&inner).unwrap();
        disk.remove_folder(&inner).unwrap();
        disk.sync_folder(inner.parent().unwrap()).unwrap();
        assert_eq!(disk.cut_power().unwrap().names, 0);
        assert!(!inner.exists());
    }
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn choices_do_not_depend_on_the_order_of_operations() {
    let after = |names: [&str; 3]| {
        let (folder, disk) = disk(7);
        for name in names {
            let file = disk.open(&path(&folder, name), Open::Create).unwrap();
            file.write_at(&[1; 20_000], 0).unwrap();
        }
        disk.cut_power().unwrap();
        ["a", "b", "c"].map(|name| fs::read(path(&folder, name)).ok())
    };
    assert_eq!(after(["a", "b", "c"]), after(["c", "a", "b"]));
}

#[test]
fn below_one_folder_nothing_is_written() {
    let (folder, disk) = disk(1);
    let (inside, outside) = (path(&folder, "inner").join("a"), path(&folder, "b"));
    disk.create_folder(inside.parent().unwrap()).unwrap();
    let file = disk.open(&inside, Open::Create).unwrap();
    file.write_at(&[1; 100], 0).unwrap();
    disk.refuse_writes(inside.parent());
    assert_eq!(file.write_at(&[2; 100], 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.sync_all().unwrap();
    disk.open(&outside, Open::Create).unwrap().write_at(&[1; 100], 0).unwrap();
    disk.refuse_writes(None);
    file.write_at(&[2; 100], 0).unwrap();
}

#[test]
fn simulated_disk_enforces_the_growth_limit_and_the_scheduled_end() {
    let (folder, disk) = disk(1);
    let path = path(&folder, "file");
    let file = disk.open(&path, Open::Create).unwrap();
    disk.limit_growth(Some(100));
    file.write_at(&[1; 100], 0).unwrap();
    assert_eq!(file.write_at(&[1; 10], 100).unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.length().unwrap(), 105, "part of the write is there");
    file.write_at(&[2; 105], 0).unwrap();
    disk.limit_growth(None);
    for (done, value) in [(true, 9), (false, 8)] {
        let file = disk.open(&path, Open::Write).unwrap();
        disk.end_after(2, done);
        file.write_at(&[value; 1], 0).unwrap();
        let now = disk.operations();
        assert!(file.write_at(&[value; 1], 1).is_err(), "the last operation returns an error");
        assert_eq!(disk.operations() - now, u64::from(done));
        assert_eq!(fs::read(&path).unwrap()[1] == value, done);
        assert!(file.sync_data().is_err() && disk.list(path.parent().unwrap()).is_err());
        disk.cut_power().unwrap();
        // Nothing of it was synced: it may be gone, or empty.
        disk.open(&path, Open::Create).unwrap().write_at(&[0; 2], 0).unwrap();
        disk.sync_folder(path.parent().unwrap()).unwrap();
    }
}
