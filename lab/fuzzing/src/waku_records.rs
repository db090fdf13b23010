//! Node records and entries of node lists in the DNS, from unknown nodes: what is read is written
//! again to the same, and nothing is read that is not signed.
//!
//! The first byte selects the kind of the rest: a record, its text, the content of a record that is
//! signed here, a link, an entry, a root, or the texts of a root that is signed here.

use bytes::Bytes;
use enr::k256::ecdsa::{Signature, SigningKey, signature::hazmat::PrehashSigner};
use protocol::{
    node_list::{EntryHash, ListEntry, ListLink, ListRoot},
    peer_exchange::RECORD_BYTES_MAX,
    record::NodeRecord,
};
use sha3::{Digest, Keccak256};

/// The seeds hold its public half.
const KEY: [u8; 32] = [5; 32];

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((selector, rest)) = bytes.split_first() else { return };
    let text = std::str::from_utf8(rest);
    match (selector % 7, text) {
        (0, _) => check(NodeRecord::decode(rest)),
        (1, Ok(text)) => check(text.parse()),
        (2, _) => check(NodeRecord::decode(&signed(rest))),
        (3, Ok(text)) => {
            let Ok(link) = text.parse::<ListLink>() else { return };
            assert_eq!(link.to_string().parse::<ListLink>(), Ok(link));
        }
        (4, Ok(text)) => {
            let Ok(entry) = ListEntry::read(text) else { return };
            let written = entry.to_string();
            assert_eq!(ListEntry::decode(&written, &EntryHash::for_text(&written)), Ok(entry));
        }
        (5, Ok(text)) => {
            let key = NodeRecord::decode(&signed(&[])).map(|record| record.public_key);
            // No key, so nothing can be signed by it.
            assert!(ListRoot::decode(text, &key.unwrap_or([2; 33])).is_err());
        }
        (6, Ok(text)) => {
            let (records, links) = (EntryHash::for_text(text), EntryHash::for_text("links"));
            let root = ListRoot { records, links, sequence: rest.len() as u64 };
            let key =
                SigningKey::from_slice(&KEY).expect("a key").verifying_key().to_sec1_point(true);
            let key: [u8; 33] = key.as_bytes().try_into().expect("compressed");
            let written = root.sign(&KEY).expect("a key");
            assert_eq!(ListRoot::decode(&written, &key), Ok(root));
        }
        _ => {}
    }
}

fn check<E>(record: Result<NodeRecord, E>) {
    let Ok(record) = record else { return };
    assert!(record.bytes.len() <= RECORD_BYTES_MAX && record.tcp.len() <= 2);
    let bytes: usize = record.addresses.iter().map(Bytes::len).sum();
    assert!(bytes <= RECORD_BYTES_MAX);
    assert_eq!(NodeRecord::decode(&record.bytes).as_ref(), Ok(&record));
    assert_eq!(record.to_string().parse(), Ok(record));
}

/// A record of the content (number, keys and values in RLP), whatever it is, signed with [`KEY`].
fn signed(content: &[u8]) -> Vec<u8> {
    let key = SigningKey::from_slice(&KEY).expect("a key");
    let hash = Keccak256::digest(list(content));
    let signature: Signature = key.sign_prehash(&hash).expect("it signs any hash");
    let signature = [&[0x80 + 56, 64][..], &signature.to_bytes()[..]].concat();
    list(&[&signature, content].concat())
}

/// An RLP list of encoded items.
fn list(content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match length {
        0..56 => vec![0xc0 + length as u8],
        56..256 => vec![0xf8, length as u8],
        _ => vec![0xf9, (length >> 8) as u8, length as u8],
    };
    [head, content.to_vec()].concat()
}
