//! Each fuzz target with its seeds, with the corpus that `make fuzz` left, and with mutations of
//! both for a moment: a short form of `make fuzz` without a fuzzer. A target gets the same sequence
//! of inputs in each run; the machine's speed decides how many of them.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    fs, panic,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};

/// For mutations of one target.
const MUTATION_TIME: Duration = Duration::from_millis(300);
/// Mutations make no longer input of a shorter one; as in libFuzzer.
const MUTATED_BYTES_MAX: usize = 4096;
/// Mutations of one input.
const MUTATIONS_MAX: usize = 8;
/// Bytes that a mutation removes, copies or takes over.
const PIECE_BYTES_MAX: usize = 32;
/// Files that are read of a corpus.
const CORPUS_FILES_MAX: usize = 200;

// Promise: P15 - Seeds of the fuzz targets, and mutations of them, break no rule of a decoder.
#[test]
fn fuzz_targets_accept_seeds_and_mutations() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    let names: BTreeSet<&str> = fuzzing::TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(binaries(&manifest), names, "`fuzz/Cargo.toml` has a binary for each target");
    for name in names {
        // At least one input, so that each target has mutations.
        let mut inputs = vec![Vec::new()];
        for folder in ["seeds", "corpus"] {
            let files = files(&fuzz.join(folder).join(name));
            inputs.extend(files.iter().take(CORPUS_FILES_MAX).map(|file| fs::read(file).unwrap()));
        }
        for input in &inputs {
            test_input(name, input);
        }
        let mut random = StdRng::seed_from_u64(name.bytes().map(u64::from).sum());
        let (end, mut mutated) = (Instant::now() + MUTATION_TIME, 0_u64);
        while Instant::now() < end {
            let input = mutation(&inputs, &mut random);
            test_input(name, &input);
            mutated += 1;
        }
        println!("{name}: {} inputs, {mutated} mutations", inputs.len());
    }
}

/// The decoder of manifests reads nothing of a header of another version, so neither seeds nor
/// mutations of them would reach what comes after that check.
#[test]
fn seed_of_a_manifest_header_has_the_current_version() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let file = fuzz.join("seeds/manifest_decoder/header");
    // The first byte of a seed chooses the decoder.
    let header = state::manifest::Header::from_bytes(&fs::read(&file).unwrap()[1..]);
    assert!(
        header.is_ok(),
        "{header:?}: the second byte of {} must be `state::manifest::VERSION`",
        file.display()
    );
}

/// Names of the binaries of a manifest.
fn binaries(manifest: &str) -> BTreeSet<&str> {
    let tables = manifest.split("[[bin]]").skip(1);
    tables
        .filter_map(|table| {
            table.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        })
        .collect()
}

/// The files of a folder, ordered; none if there is no such folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Gives an input to a target. One that fails is written to a file: it becomes a seed.
fn test_input(name: &str, input: &[u8]) {
    if let Err(cause) = panic::catch_unwind(|| fuzzing::run(name, input)) {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fuzz-{name}"));
        fs::write(&file, input).unwrap();
        println!("{name} failed; its input is {}", file.display());
        panic::resume_unwind(cause);
    }
}

/// One of the inputs, changed in some places.
fn mutation(inputs: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    let mut input = inputs[random.gen_range(0..inputs.len())].clone();
    let bytes_max = input.len().max(MUTATED_BYTES_MAX);
    for _ in 0..random.gen_range(1..=MUTATIONS_MAX) {
        let start = random.gen_range(0..=input.len());
        let end = input.len().min(start + random.gen_range(1..=PIECE_BYTES_MAX));
        match random.gen_range(0..7) {
            0 => input.truncate(start),
            1 => drop(input.drain(start..end)),
            2 => input.insert(start, random.r#gen()),
            3 if start < end => input[start] ^= 1 << random.gen_range(0..8),
            4 => {
                let limits = [0, 1, 0x7f, 0x80, 0xff];
                input[start..end].fill(limits[random.gen_range(0..limits.len())]);
            }
            5 => {
                let copy = input[start..end].to_vec();
                drop(input.splice(start..start, copy));
            }
            // A piece of another input, or of this one.
            _ => {
                let other = &inputs[random.gen_range(0..inputs.len())];
                let from = random.gen_range(0..=other.len());
                let to = other.len().min(from + random.gen_range(1..=PIECE_BYTES_MAX));
                drop(input.splice(start..end, other[from..to].iter().copied()));
            }
        }
        input.truncate(bytes_max);
    }
    input
}
