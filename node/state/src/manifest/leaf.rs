//! One leaf of a memory as it is hashed and sent: a word whose bits say which of its 64 pages are
//! not zero (the lowest bit is the first page), and those pages. A leaf of zeros has no encoding;
//! the manifest leaves it out.

use pages::PAGE_BYTES;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::{LEAF_BYTES, LeafHash};

/// The word in front.
pub(super) const MASK_BYTES: usize = 8;

const PAGE: usize = PAGE_BYTES as usize;
const ZERO_PAGE: [u8; PAGE] = [0; PAGE];

const _: () = assert!(LEAF_BYTES == 64 * PAGE);

/// Why bytes are not a valid leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[expect(missing_docs, reason = "the texts say what they are")]
pub enum LeafError {
    #[error("a leaf of {0} bytes has no page mask")]
    CutOff(usize),
    #[error("a leaf of {found} bytes should have {expected}, as its page mask says")]
    Length { found: usize, expected: usize },
    #[error("a leaf names a page that is zero, or none")]
    Zero,
    #[error("a leaf names a page beyond the end of its memory")]
    PastEnd,
}

/// Encodes the pages of a leaf (fewer than 64 at the end of a memory) into `encoded`, whose content
/// is replaced. False, and nothing in `encoded`, if all are zero.
pub fn encode_leaf(pages: &[u8], encoded: &mut Vec<u8>) -> bool {
    encoded.clear();
    let mut mask = 0u64;
    for (number, page) in pages.chunks(PAGE).take(64).enumerate() {
        let zero = ZERO_PAGE.get(..page.len()).is_some_and(|zeros| zeros == page);
        mask |= u64::from(!zero) << number;
    }
    if mask == 0 {
        return false;
    }
    encoded.extend_from_slice(&mask.to_be_bytes());
    for (number, page) in pages.chunks(PAGE).take(64).enumerate() {
        if mask >> number & 1 == 1 {
            encoded.extend_from_slice(page);
        }
    }
    true
}

/// Hash of an encoded leaf.
pub fn leaf_hash(encoded: &[u8]) -> LeafHash {
    Sha256::digest(encoded).into()
}

/// The pages of an encoded leaf: for each run of pages that are not zero, the first page within the
/// leaf and their bytes. `pages` is how many pages of the leaf the memory has.
///
/// # Errors
/// When the bytes are not what [`encode_leaf`] makes of any leaf.
pub fn unpack_leaf(encoded: &[u8], pages: u32) -> Result<Vec<(u64, &[u8])>, LeafError> {
    let Some((mask, content)) = encoded.split_first_chunk::<MASK_BYTES>() else {
        return Err(LeafError::CutOff(encoded.len()));
    };
    let mask = u64::from_be_bytes(*mask);
    let expected = mask.count_ones() as usize * PAGE;
    if content.len() != expected {
        return Err(LeafError::Length { found: encoded.len(), expected: MASK_BYTES + expected });
    }
    if mask == 0 || content.chunks(PAGE).any(|page| page == ZERO_PAGE) {
        return Err(LeafError::Zero);
    }
    if 64 - mask.leading_zeros() > pages {
        return Err(LeafError::PastEnd);
    }
    let (mut runs, mut rest, mut page) = (Vec::new(), content, 0);
    while page < 64 {
        let set = (mask >> page).trailing_ones();
        if set == 0 {
            page += 1;
            continue;
        }
        let (run, after) = rest.split_at(set as usize * PAGE);
        runs.push((u64::from(page), run));
        rest = after;
        page += set;
    }
    debug_assert!(rest.is_empty(), "{} bytes are of no page of the mask", rest.len());
    Ok(runs)
}
