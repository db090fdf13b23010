//! Dealings, transcripts and keys of the key generation: decoding whatever arrives returns, and an
//! accepted value has that one encoding.
//!
//! The first byte chooses the decoder. A stored secret key ends with a checksum that no mutation
//! would find, so it is put in place.

use std::sync::LazyLock;

use nidkg::{Dealing, EncryptionPublicKey, EncryptionSecretKey, Engine, EngineConfig, Transcript};
use sha2::{Digest, Sha256};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    Engine::new(EngineConfig::for_this_machine()).expect("threads can be started")
});

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    match choice % 4 {
        0 => {
            let Ok(dealing) = Dealing::from_bytes(bytes) else { return };
            assert_eq!(dealing.to_bytes(), bytes);
        }
        1 => {
            let Ok(transcript) = Transcript::from_bytes(&ENGINE, bytes) else { return };
            assert_eq!(transcript.to_bytes(), bytes);
        }
        2 => {
            let Ok(key) = EncryptionPublicKey::from_bytes(bytes, b"node") else { return };
            assert_eq!(key.to_bytes(), bytes);
        }
        _ => {
            let sealed = [bytes, &Sha256::digest(bytes)[..]].concat();
            let Ok(key) = EncryptionSecretKey::from_bytes(&sealed) else { return };
            assert_eq!(*key.to_bytes(), sealed);
        }
    }
}
