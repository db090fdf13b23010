//! Documents: written from dumps, read back, damaged, hostile.

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;

use super::*;

/// As jemalloc writes it.
const DUMP: &str = "heap_v2/131072
  t*: 4: 500 [20: 3000]
  t0: 4: 500 [20: 3000]
@ 0x1010 0x2020 0xffffffffff600000
  t*: 3: 393216 [17: 2228224]
  t0: 1: 131072 [7: 917504]
  t9: 2: 262144 [10: 1310720]
@ 0x1010
  t*: 0: 0 [1: 4096]
  t0: 0: 0 [1: 4096]

MAPPED_LIBRARIES:
1000-3000 r-xp 00000400 fe:00 77                         /usr/bin/a program
3000-4000 rw-p 00002000 fe:00 77                         /usr/bin/a program
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
7000-8000 r-xp 00000000 00:00 0
";

fn head() -> Head {
    Head {
        program: "x".into(),
        pid: 7,
        sample_bytes: 131_072,
        build_id: "ab".into(),
        ..Head::default()
    }
}

fn packed(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    packed.finish().unwrap()
}

fn text_of(dump: &str) -> Result<String> {
    let mut text = Vec::new();
    write(&head(), &mut dump.as_bytes(), &mut text)?;
    Ok(String::from_utf8(text).unwrap())
}

#[test]
fn what_a_dump_says_of_all_threads_and_of_code_comes_back() {
    let text = text_of(DUMP).unwrap();
    assert!(
        !text.contains("t0") && !text.contains("rw-p") && !text.contains("[20: 3000]"),
        "{text}"
    );
    let document = read(&packed(&text)[..]).unwrap();
    assert_eq!(document.head, Head { version: 1, ..head() });
    let count = |samples, bytes| Count { samples, bytes };
    assert_eq!(
        document.stacks,
        [
            Stack {
                addresses: vec![0x1010, 0x2020, 0xffff_ffff_ff60_0000],
                live: count(3, 393_216),
                total: count(17, 2_228_224)
            },
            Stack { addresses: vec![0x1010], live: count(0, 0), total: count(1, 4096) },
        ]
    );
    let paths: Vec<&str> = document.mappings.iter().map(|mapping| &mapping.path[..]).collect();
    assert_eq!(paths, ["/usr/bin/a program", "[vsyscall]", ""]);
    assert_eq!((document.mappings[0].start, document.mappings[0].offset), (0x1000, 0x400));
}

#[test]
fn a_dump_that_ends_early_makes_no_document() {
    let end = DUMP.find("MAPPED").unwrap();
    for length in 0..end {
        assert!(text_of(&DUMP[..length]).is_err(), "{length} bytes");
    }
    assert!(text_of("heap profile: 1: 2 [3: 4] @ heapprofile\n").is_err());
}

#[test]
fn a_document_that_was_cut_off_anywhere_is_refused() {
    let text = text_of(DUMP).unwrap();
    let mappings = text.find(MAPPINGS).unwrap() + MAPPINGS.len();
    for length in 0..=mappings {
        assert!(read(&packed(&text[..length])[..]).is_err(), "{length} characters");
    }
    let whole = packed(&text);
    for length in 0..whole.len() {
        assert!(read(&whole[..length]).is_err(), "{length} compressed bytes");
    }
}

#[test]
fn what_is_hostile_is_refused_with_its_place() {
    let text = text_of(DUMP).unwrap();
    let refused = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        format!("{:#}", read(&packed(&text.replacen(from, to, 1))[..]).unwrap_err())
    };
    assert!(refused("0x2020", "0xg").contains("line 3"));
    assert!(refused("0x2020", "0x1ffffffffffffffff").contains("line 3"));
    assert!(refused("t*: 3:", "t*: -3:").contains("line 4"));
    assert!(refused("t*: 3:", "@ 0x1").contains("line 4"));
    assert!(refused("1000-3000", "3000-1000").contains("line 8"));
    assert!(refused("\"version\":1", "\"version\":2").contains("version 2"));
    assert!(refused("heap_v2/131072", "heap_v2/1").contains("second line"));
    assert!(refused("\"sample_bytes\":131072", "\"sample_bytes\":0").contains("0 bytes"));
    let long = format!("@{}", " 0x1".repeat(FRAMES_MAX + 1));
    assert!(refused("@ 0x1010 0x2020", &long).contains("line 3"));
    assert!(refused("0x2020", &"1".repeat(LINE_BYTES_MAX)).contains("longer than"));
    let many = "@ 0x1\nt*: 0: 0 [0: 0]\n".repeat(STACKS_MAX + 1);
    assert!(refused("MAPPED", &(many + "MAPPED")).contains("stacks"));
    assert!(format!("{:#}", read(&b"<html>"[..]).unwrap_err()).contains("line 1"));
}

#[test]
fn little_that_unpacks_to_much_is_not_unpacked_to_its_end() {
    let text = text_of(DUMP).unwrap();
    let line = format!("{:8000}\n", "@ 0x1");
    let lines = DOCUMENT_BYTES_MAX as usize / line.len() + 1;
    let bomb = packed(&text.replacen("@ 0x1010", &(line.repeat(lines) + "@ 0x1010"), 1));
    assert!(bomb.len() < 200_000);
    // The first of its lines lacks its counts; without that its size would be the reason.
    assert!(read(&bomb[..]).is_err());
    let spaces = packed(&text.replacen("\nheap", &format!("{}\nheap", "\n".repeat(40 << 20)), 1));
    assert!(read(&spaces[..]).is_err());
}

proptest! {
    #[test]
    fn no_text_ends_the_program(text in ".{0,200}", at in 0usize..2000) {
        let _ = read(text.as_bytes());
        let _ = read(&packed(&text)[..]);
        let mut whole = text_of(DUMP).unwrap();
        let at = whole.floor_char_boundary(at.min(whole.len()));
        whole.insert_str(at, &text);
        let _ = read(&packed(&whole)[..]);
    }

    #[test]
    fn no_bytes_end_the_program(at in 0usize..1000, byte: u8) {
        let mut packed = packed(&text_of(DUMP).unwrap());
        let at = at % packed.len();
        packed[at] = byte;
        let _ = read(&packed[..]);
    }
}
