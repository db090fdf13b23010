//! A heap in a file on a disk that is full.
#![allow(clippy::unwrap_used)]

use std::{fs, io::Write};

use memory::{Allocator, FileHeap, STEP_BYTES, file_heap};
use testing::SmallDisk;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// As the node's programs set it up.
#[unsafe(export_name = "malloc_conf")]
static MALLOC_CONF: Option<&'static std::ffi::c_char> = {
    const TEXT: &std::ffi::CStr = c"narenas:2,tcache_max:4096,retain:false,muzzy_decay_ms:0";
    // SAFETY: the pointer is to a constant string that ends in zero.
    Some(unsafe { &*TEXT.as_ptr() })
};

// Promise: P3 - A file-backed heap without disk room reports it, allocates elsewhere, and recovers.
#[test]
fn a_heap_that_finds_no_disk_says_so_allocates_elsewhere_and_goes_on_when_there_is_some() {
    let mount_point = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(mount_point.path(), "48m") else { return };
    let heap = FileHeap::create(disk.path(), 1 << 30).unwrap();
    heap.ready().unwrap();
    // Another file takes the rest of the disk.
    let filler = disk.path().join("filler");
    let mut file = fs::File::create(&filler).unwrap();
    for size in [64 << 10, 4 << 10] {
        let chunk = vec![0; size];
        while file.write_all(&chunk).is_ok() {}
    }
    // Memory that has its blocks can still be used; nothing is written where there is no block.
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    while heap.ready().is_ok() {
        let _here = heap.enter();
        blocks.push(vec![1; 64 << 10]);
        assert!(blocks.len() < 1024, "the heap grows on a full disk");
    }
    let error = heap.ready().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    let beyond: Vec<Vec<u8>> = {
        let _here = heap.enter();
        (0..4).map(|byte| vec![byte; STEP_BYTES]).collect()
    };
    assert!(beyond.iter().any(|block| !heap.holds(block.as_ptr())));
    assert!(beyond.iter().zip(0..).all(|(block, byte)| block.iter().all(|at| *at == byte)));
    assert!(blocks.iter().all(|block| block.iter().all(|at| *at == 1)));
    // Room again.
    let before = file_heap().disk_bytes;
    drop(file);
    fs::remove_file(&filler).unwrap();
    heap.ready().unwrap();
    let here = heap.enter();
    let again = vec![2_u8; STEP_BYTES];
    drop(here);
    assert!(heap.holds(again.as_ptr()));
    assert!(file_heap().disk_bytes >= before);

    // Beyond its bound it takes nothing more, and that is not a fault of the disk.
    let taken = file_heap().disk_bytes;
    heap.bound(taken);
    heap.ready().unwrap();
    let here = heap.enter();
    let beyond: Vec<Vec<u8>> = (0..4).map(|byte| vec![byte; STEP_BYTES]).collect();
    drop(here);
    assert!(beyond.iter().any(|block| !heap.holds(block.as_ptr())));
    assert!(beyond.iter().zip(0..).all(|(block, byte)| block.iter().all(|at| *at == byte)));
    assert_eq!(file_heap().disk_bytes, taken);

    // An allocation that grows there moves out, and only the heap uses its place again.
    let here = heap.enter();
    let mut growing: Vec<Vec<u8>> = (0..200).map(|_| vec![3; 64]).collect();
    let inside = growing.iter().filter(|block| heap.holds(block.as_ptr())).count();
    growing.iter_mut().for_each(|block| block.resize(256 << 10, 4));
    drop(here);
    assert!(inside > 0 && growing.iter().any(|block| !heap.holds(block.as_ptr())));
    assert!(growing.iter().all(|block| block[63] == 3 && block[64] == 4));
    let others: Vec<Box<[u8; 64]>> = (0..200).map(|byte| Box::new([byte; 64])).collect();
    assert!(others.iter().all(|block| !heap.holds(&raw const **block)));
}
