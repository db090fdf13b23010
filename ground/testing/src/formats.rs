//! Pinned bytes of formats: what is on disk or on the wire is read by other versions of a program.

use sha2::{Digest, Sha256};

/// Compares the encodings of samples of a format with the hash that is pinned for `version`. Every
/// part of the format belongs into a sample, with values that differ from its defaults.
///
/// # Panics
///
/// If the bytes differ. The format then needs another version, whose hash the message contains.
#[track_caller]
pub fn check(format: &str, version: u64, samples: &[(&str, Vec<u8>)], pinned: &str) {
    let found = hash(version, samples);
    assert_eq!(
        found, pinned,
        "the bytes of {format}, version {version}, are not those that are pinned (left: found): \
         give it another version, or its readers take one for the other"
    );
}

fn hash(version: u64, samples: &[(&str, Vec<u8>)]) -> String {
    let mut hash = Sha256::new();
    hash.update(version.to_be_bytes());
    for (name, bytes) in samples {
        for part in [name.as_bytes(), bytes] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    // The first half says as much, and fits a line.
    hex::encode(&hash.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_a_name_a_border_and_the_version_all_count() {
        let of = |version, samples: &[(&str, &[u8])]| {
            let samples: Vec<_> =
                samples.iter().map(|(name, bytes)| (*name, bytes.to_vec())).collect();
            hash(version, &samples)
        };
        let all = [
            of(1, &[("a", &[1, 2]), ("b", &[3])]),
            of(2, &[("a", &[1, 2]), ("b", &[3])]),
            of(1, &[("a", &[1, 2]), ("c", &[3])]),
            of(1, &[("a", &[1]), ("b", &[2, 3])]),
            of(1, &[("a", &[1, 2]), ("b", &[4])]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all.iter().skip(index + 1).all(|other| other != one), "{index}");
        }
    }
}
