//! Pinned bytes of formats: what is on disk or on the wire is read by other versions of a program.
//!
//! A pin is a version with what that version encodes to. Other bytes under the pinned version fail,
//! and their hash is not shown: the version has to be raised first, and only then does the failure
//! contain the new pin. So nobody pins other bytes under a version that is already in use.

use sha2::{Digest, Sha256};

/// A version of a format, and the hash of what it encodes samples to.
pub type Pin = (u64, &'static str);

/// Compares the encodings of samples of a format with those that are pinned ([`check_hash`]). Every
/// part of the format belongs into a sample, with values that differ from its defaults.
///
/// # Panics
///
/// As [`check_hash`].
#[track_caller]
pub fn check(format: &str, version: u64, samples: &[(&str, Vec<u8>)], pinned: Pin) {
    check_hash(format, version, &hash(version, samples), pinned);
}

/// Compares the hash of what `version` of a format encodes to with the pinned one.
///
/// # Panics
///
/// If another hash is pinned for this version: the version has to be raised. If another version is
/// pinned: the message contains the pin of this one.
#[track_caller]
pub fn check_hash(format: &str, version: u64, found: &str, pinned: Pin) {
    if let Err(error) = compare(format, version, found, pinned) {
        panic!("{error}");
    }
}

fn compare(format: &str, version: u64, found: &str, (of, hash): Pin) -> Result<(), String> {
    if version < of {
        Err(format!("{format} has version {version}, and version {of} was in use: raise it"))
    } else if version > of {
        Err(format!("{format} has version {version} now: pin ({version}, \"{found}\")"))
    } else if found != hash {
        Err(format!(
            "{format}: these are not the bytes of version {version}. Raise the version, or readers \
             take one format for the other; then this test says what to pin"
        ))
    } else {
        Ok(())
    }
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_need_another_version_before_their_hash_is_shown() {
        let compared = |version, found| compare("a letter", version, found, (2, "old"));
        assert_eq!(compared(2, "old"), Ok(()));
        let refused = compared(2, "new").unwrap_err();
        assert!(refused.contains("Raise the version"), "{refused}");
        assert!(!refused.contains("new"), "{refused}");
        assert!(compared(3, "new").unwrap_err().contains("pin (3, \"new\")"));
        assert!(compared(3, "old").unwrap_err().contains("pin (3, \"old\")"));
        assert!(compared(1, "old").unwrap_err().contains("version 2 was in use"));
    }

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
