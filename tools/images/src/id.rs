//! ID of a base: the SHA-256 of the file it was made from, and the form it has in the cache.
//!
//! The hash is that of the file *as given*, not of the disk in it. It is known before anything is
//! unpacked, so two processes that add the same file meet at one lock and only one unpacks;
//! publishers state it with their downloads. The cost is that one disk packed in two ways is kept
//! twice, which is rare; a hash of the disk would require every add to unpack.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

const HASH_DIGITS: usize = 64;
/// Fewest digits that name a base; with fewer, a typing error could name another one.
pub(crate) const PREFIX_DIGITS_MIN: usize = 6;

/// Format of a base in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Form {
    /// The disk byte for byte, holes as holes.
    Raw,
    /// The qcow2 file that was given, as it was given.
    Qcow2,
    /// A qcow2 file with clusters that are packed by zstd, made here.
    Zstd,
}

impl Form {
    /// The name in ids and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Zstd => "zstd",
        }
    }

    /// QEMU's name of it: `raw` or `qcow2`.
    pub fn format(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 | Self::Zstd => "qcow2",
        }
    }
}

/// See the module. Written as 64 hexadecimal digits, a hyphen and the form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseId {
    /// SHA-256 of the file.
    pub key: [u8; 32],
    /// Its form in the cache.
    pub form: Form,
}

impl fmt::Display for BaseId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}-{}", hex::encode(self.key), self.form.name())
    }
}

impl fmt::Debug for BaseId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
}

impl FromStr for BaseId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (digits, form) = text.split_once('-').ok_or(())?;
        let form =
            [Form::Raw, Form::Qcow2, Form::Zstd].into_iter().find(|known| known.name() == form);
        // One spelling only: a folder in upper case is ignored.
        let lower = digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
        if digits.len() != HASH_DIGITS || !lower {
            return Err(());
        }
        let mut key = [0; 32];
        hex::decode_to_slice(digits, &mut key).map_err(|_| ())?;
        Ok(Self { key, form: form.ok_or(())? })
    }
}

impl Serialize for BaseId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BaseId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|()| serde::de::Error::custom("not the id of a base"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = BaseId { key: [0xab; 32], form: Form::Zstd };
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in [
            id.to_string().to_uppercase(),
            id.to_string().replace("zstd", "vmdk"),
            "ab-raw".into(),
            hex::encode(id.key),
            format!("{}é-raw", "a".repeat(62)),
        ] {
            assert_eq!(wrong.parse::<BaseId>(), Err(()), "{wrong}");
        }
    }
}
