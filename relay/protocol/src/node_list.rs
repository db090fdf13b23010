//! Lists of nodes in the DNS (EIP-1459): a tree of text records under a domain, whose root is
//! signed by a key in the list's URL, `enrtree://KEY@DOMAIN`.
//!
//! The root names two subtrees by the hash of their first entry: node records, and links to other
//! lists. An entry is a branch (hashes of further entries), a record or a link, and is found at
//! `HASH.DOMAIN`. As every entry must hash to its name, only data that the key signed can be read.
//!
//! Bounds: [`ENTRY_BYTES_MAX`], and with it the children of a branch. It must never know how
//! entries are looked up, how many, and in which order.

use std::{fmt, str::FromStr};

use data_encoding::{BASE32_NOPAD, BASE64URL_NOPAD};
use enr::k256::ecdsa::{
    Signature, SigningKey, VerifyingKey,
    signature::hazmat::{PrehashSigner, PrehashVerifier},
};
use sha3::{Digest, Keccak256};
use thiserror::Error;

use crate::record::{NodeRecord, NodeRecordError, PUBLIC_KEY_BYTES, TEXT_PREFIX};

/// Longest entry that is read, in bytes. The specification wants entries that fit a DNS message
/// over UDP; a record takes 404 bytes, a branch of 13 hashes 366.
pub const ENTRY_BYTES_MAX: usize = 1024;

/// Longest domain of a list: with a hash and a dot before it, it is a DNS name.
pub const DOMAIN_BYTES_MAX: usize = 253 - 1 - HASH_TEXT_MAX;

/// Before a list's URL.
pub const LINK_PREFIX: &str = "enrtree://";

const ROOT_PREFIX: &str = "enrtree-root:v1 ";
const BRANCH_PREFIX: &str = "enrtree-branch:";
/// A hash may be cut off: between 12 bytes, and all 32 of them, in base32.
const HASH_BYTES_MIN: usize = 12;
const HASH_TEXT_MAX: usize = 52;
/// As much of a hash as lists have that are made here, like those of go-ethereum.
const HASH_BYTES: usize = 16;
/// r, s, and a byte that is ignored.
const SIGNATURE_BYTES: usize = 65;

/// Why an entry is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// More than an entry may have.
    #[error("an entry of {bytes} bytes; the longest that is read has {ENTRY_BYTES_MAX}")]
    TooLong {
        /// Length of the entry's text, in bytes.
        bytes: usize,
    },
    /// Not of the form of a URL, a root, a branch, a link or a hash.
    #[error("not {what} of a node list")]
    Form {
        /// The expected form.
        what: &'static str,
    },
    /// The root is not signed by the list's key.
    #[error("the root is not signed by the key in the URL")]
    Signature,
    /// The text has another hash than its name.
    #[error("the entry does not hash to its name")]
    Hash,
    /// A record in the list.
    #[error(transparent)]
    Record(#[from] NodeRecordError),
}

fn form(what: &'static str) -> ListError {
    ListError::Form { what }
}

fn check_length(text: &str) -> Result<(), ListError> {
    let bytes = text.len();
    if bytes > ENTRY_BYTES_MAX { Err(ListError::TooLong { bytes }) } else { Ok(()) }
}

fn keccak(text: &str) -> [u8; 32] {
    Keccak256::digest(text.as_bytes()).into()
}

/// The domain of a list, and the key that signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListLink {
    /// secp256k1 key, compressed.
    pub public_key: [u8; PUBLIC_KEY_BYTES],
    /// A DNS name of at most [`DOMAIN_BYTES_MAX`] bytes, in lower case, without a dot at its end.
    pub domain: String,
}

impl FromStr for ListLink {
    type Err = ListError;

    /// Reads `enrtree://KEY@DOMAIN`. Errors: another form, no key of secp256k1, no domain name.
    fn from_str(text: &str) -> Result<Self, ListError> {
        check_length(text)?;
        let wrong = || form("a URL (enrtree://KEY@DOMAIN)");
        let (key, domain) = text
            .strip_prefix(LINK_PREFIX)
            .and_then(|rest| rest.split_once('@'))
            .ok_or_else(wrong)?;
        let key = BASE32_NOPAD.decode(key.as_bytes()).map_err(|_| wrong())?;
        VerifyingKey::from_sec1_bytes(&key).map_err(|_| wrong())?;
        let public_key = key.try_into().map_err(|_| wrong())?;
        let label = |label: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(known)
        };
        let domain = domain.strip_suffix('.').unwrap_or(domain);
        if domain.len() > DOMAIN_BYTES_MAX || !domain.split('.').all(label) {
            return Err(wrong());
        }
        Ok(Self { public_key, domain: domain.to_ascii_lowercase() })
    }
}

impl fmt::Display for ListLink {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{LINK_PREFIX}{}@{}", BASE32_NOPAD.encode(&self.public_key), self.domain)
    }
}

/// The name of an entry: the beginning of the Keccak-256 of its text, in base32.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryHash(Box<str>);

impl EntryHash {
    /// The name of a text.
    pub fn for_text(text: &str) -> Self {
        Self(BASE32_NOPAD.encode(&keccak(text)[..HASH_BYTES]).into())
    }

    fn bytes(text: &str) -> Option<Vec<u8>> {
        let bytes = BASE32_NOPAD.decode(text.as_bytes()).ok()?;
        (HASH_BYTES_MIN..=32).contains(&bytes.len()).then_some(bytes)
    }

    /// Whether a text is the one that is named.
    pub fn names(&self, text: &str) -> bool {
        Self::bytes(&self.0).is_some_and(|bytes| keccak(text).starts_with(&bytes))
    }
}

impl FromStr for EntryHash {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        Self::bytes(text).ok_or_else(|| form("a hash"))?;
        Ok(Self(text.into()))
    }
}

impl fmt::Display for EntryHash {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// The root of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRoot {
    /// First entry of the records.
    pub records: EntryHash,
    /// First entry of the links.
    pub links: EntryHash,
    /// Rises with each version of the list.
    pub sequence: u64,
}

impl ListRoot {
    fn signed_text(&self) -> String {
        format!("{ROOT_PREFIX}e={} l={} seq={}", self.records, self.links, self.sequence)
    }

    /// Whether a text is a root and not another record at the same domain.
    pub fn is_root(text: &str) -> bool {
        text.starts_with(ROOT_PREFIX)
    }

    /// Reads a root, without checking its signer; the signature is the second part.
    fn split(text: &str) -> Result<(Self, [u8; SIGNATURE_BYTES]), ListError> {
        check_length(text)?;
        let wrong = || form("a root");
        let fields = text.strip_prefix(ROOT_PREFIX).ok_or_else(wrong)?;
        let mut fields = fields.split(' ');
        let mut field =
            |name| fields.next().and_then(|field| field.strip_prefix(name)).ok_or_else(wrong);
        let (records, links) = (field("e=")?.parse()?, field("l=")?.parse()?);
        let sequence = field("seq=")?.parse().map_err(|_| wrong())?;
        let signature = BASE64URL_NOPAD.decode(field("sig=")?.trim_end_matches('=').as_bytes());
        let signature = signature.ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)?;
        if fields.next().is_some() {
            return Err(wrong());
        }
        Ok((Self { records, links, sequence }, signature))
    }

    /// Reads a root that `public_key` signed. Errors: too long, another form, unsigned or signed by
    /// another key.
    pub fn decode(text: &str, public_key: &[u8; PUBLIC_KEY_BYTES]) -> Result<Self, ListError> {
        let (root, signature) = Self::split(text)?;
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| ListError::Signature)?;
        let signature = signature
            .split_last()
            .and_then(|(_, signature)| Signature::from_slice(signature).ok())
            .ok_or(ListError::Signature)?;
        // The signature is of the text as it was written.
        let signed = text.rsplit_once(" sig=").map_or(text, |(signed, _)| signed);
        key.verify_prehash(&keccak(signed), &signature).map_err(|_| ListError::Signature)?;
        Ok(root)
    }

    /// The root, signed. Errors: no secret key of secp256k1.
    pub fn sign(&self, secret: &[u8; 32]) -> Result<String, ListError> {
        let key = SigningKey::from_slice(secret).map_err(|_| ListError::Signature)?;
        let text = self.signed_text();
        let signature: Signature =
            key.sign_prehash(&keccak(&text)).map_err(|_| ListError::Signature)?;
        let mut bytes = signature.to_bytes().to_vec();
        bytes.push(0);
        Ok(format!("{text} sig={}", BASE64URL_NOPAD.encode(&bytes)))
    }
}

/// An entry below the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEntry {
    /// Names of further entries.
    Branch(Vec<EntryHash>),
    /// The signed record of one node.
    Record(Box<NodeRecord>),
    /// Key and domain of another list.
    Link(ListLink),
}

impl ListEntry {
    /// Reads the entry named `name`. Errors: too long, another hash, another form, a damaged
    /// record.
    pub fn decode(text: &str, name: &EntryHash) -> Result<Self, ListError> {
        check_length(text)?;
        if !name.names(text) {
            return Err(ListError::Hash);
        }
        Self::read(text)
    }

    /// The same without its name.
    pub fn read(text: &str) -> Result<Self, ListError> {
        check_length(text)?;
        if let Some(children) = text.strip_prefix(BRANCH_PREFIX) {
            if children.is_empty() {
                return Ok(Self::Branch(Vec::new()));
            }
            return Ok(Self::Branch(
                children.split(',').map(str::parse).collect::<Result<_, _>>()?,
            ));
        }
        if text.starts_with(LINK_PREFIX) {
            return Ok(Self::Link(text.parse()?));
        }
        if text.starts_with(TEXT_PREFIX) {
            return Ok(Self::Record(Box::new(text.parse()?)));
        }
        Err(form("an entry"))
    }
}

impl fmt::Display for ListEntry {
    /// The text of the entry.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Branch(children) => {
                to.write_str(BRANCH_PREFIX)?;
                for (place, child) in children.iter().enumerate() {
                    write!(to, "{}{child}", if place > 0 { "," } else { "" })?;
                }
                Ok(())
            }
            Self::Record(record) => record.fmt(to),
            Self::Link(link) => link.fmt(to),
        }
    }
}
