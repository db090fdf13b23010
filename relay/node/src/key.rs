//! The node's key: secp256k1, in a file that only its owner may read. Its public half is the peer
//! id by which other nodes know this one.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Read},
    path::Path,
};

use anyhow::{Context, Result, bail};
use libp2p::identity::{Keypair, secp256k1};
use zeroize::Zeroizing;

/// Length of the key as text, with a line end or two.
const FILE_BYTES_MAX: u64 = 80;

/// Reads a key of 64 hexadecimal digits, as other Waku nodes take it too.
pub(crate) fn parse(text: &str) -> Result<Keypair> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    hex::decode_to_slice(text.trim(), bytes.as_mut())
        .context("a node key is 64 hexadecimal digits, a secp256k1 secret key")?;
    let secret = secp256k1::SecretKey::try_from_bytes(bytes.as_mut_slice())
        .context("these 32 bytes are no secp256k1 secret key")?;
    Ok(secp256k1::Keypair::from(secret).into())
}

/// The secret half of a node's key, with which it signs its record.
pub(crate) fn secret(keys: &Keypair) -> Result<Zeroizing<[u8; 32]>> {
    let keys = keys.clone().try_into_secp256k1().context("the node's key is of secp256k1")?;
    Ok(Zeroizing::new(keys.secret().to_bytes()))
}

/// Reads the key in a file, or makes one there.
pub(crate) fn load_or_create(path: &Path) -> Result<Keypair> {
    let open = OpenOptions::new().read(true).open(path);
    match open {
        Ok(file) => {
            let mut text = Zeroizing::new(String::new());
            file.take(FILE_BYTES_MAX + 1)
                .read_to_string(&mut text)
                .with_context(|| format!("reading {}", path.display()))?;
            parse(&text).with_context(|| {
                format!("{} is damaged: put the key back from a copy", path.display())
            })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => create(path),
        Err(error) => Err(error).with_context(|| format!("opening {}", path.display())),
    }
}

fn create(path: &Path) -> Result<Keypair> {
    let keypair = secp256k1::Keypair::generate();
    let text = Zeroizing::new(hex::encode(keypair.secret().to_bytes()) + "\n");
    let Some(folder) = path.parent() else { bail!("{} is no place for a key", path.display()) };
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    disk::replace_file(path, text.as_bytes(), disk::Readers::Owner)
        .with_context(|| format!("making {}", path.display()))?;
    Ok(keypair.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data").join("relay.key");
        let first = load_or_create(&path).unwrap();
        let second = load_or_create(&path).unwrap();
        assert_eq!(first.public(), second.public());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_key_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.key");
        for damaged in ["", "00", &"0".repeat(64), &"zz".repeat(32), &"a".repeat(1000)] {
            fs::write(&path, damaged).unwrap();
            let error = format!("{:#}", load_or_create(&path).unwrap_err());
            assert!(error.contains("relay.key"), "{error}");
        }
    }
}
