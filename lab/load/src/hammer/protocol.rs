//! Arguments and replies of the hammer canister's methods: little-endian words.
//! `canisters/hammer-c/hammer.c` is the other side.

use candid::Principal;

use super::pattern::{self, PAGE_BYTES, PAGE_WORDS};

/// "HAM01": the first word of `info`.
const MAGIC: u64 = 0x31_304D_4148;
const SAMPLE_WORDS: usize = 8;
const RUNS_MAX: u64 = 64;
const SAMPLES_MAX: u64 = 4;
/// Bytes of a principal in a ring: its length, then its bytes.
const MEMBER_BYTES: usize = 30;
pub(crate) const RING_MAX: usize = 64;

/// Encodes words as eight bytes each, little-endian.
pub(crate) fn encode_words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Decodes words; a rest of less than eight bytes is not a word.
pub(crate) fn decode_words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// The first word of a reply that is at least one word long.
pub(crate) fn first_word(bytes: &[u8]) -> Result<u64, String> {
    let reply = || format!("the canister replied {} bytes where a word was expected", bytes.len());
    bytes.first_chunk::<8>().map(|word| u64::from_le_bytes(*word)).ok_or_else(reply)
}

/// What `info` replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) seed: u64,
    pub(crate) count: u64,
    pub(crate) hops: u64,
    pub(crate) generation: u64,
    pub(crate) stable_bytes: u64,
    pub(crate) heap_bytes: u64,
}

impl Info {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        match decode_words(bytes)[..] {
            [MAGIC, seed, count, hops, generation, stable_bytes, heap_bytes] => {
                Ok(Self { seed, count, hops, generation, stable_bytes, heap_bytes })
            }
            _ => Err("its `info` is not that of the hammer module".into()),
        }
    }
}

/// The ring of canisters as the argument of `chain` and `fan` carries it.
pub(crate) fn ring(canisters: &[Principal]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(canisters.len() * MEMBER_BYTES);
    for canister in canisters {
        let id = canister.as_slice();
        let start = bytes.len();
        bytes.push(id.len() as u8);
        bytes.extend_from_slice(id);
        bytes.resize(start + MEMBER_BYTES, 0);
    }
    bytes
}

/// The head of the argument of `chain` and `fan`.
pub(crate) struct Route<'a> {
    /// chain: calls to make; fan: calls to each member.
    pub(crate) hops_left: u64,
    /// chain: 0; fan: members called at once.
    pub(crate) hop: u64,
    /// The member that the client calls.
    pub(crate) member: u64,
    pub(crate) ring: &'a [u8],
    /// Seconds of a best-effort call; 0 asks for a guaranteed response.
    pub(crate) timeout_seconds: u64,
    pub(crate) payload_bytes: u64,
}

impl Route<'_> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let members = (self.ring.len() / MEMBER_BYTES) as u64;
        let mut bytes =
            encode_words(&[self.hops_left, self.hop, self.member, members, self.timeout_seconds]);
        bytes.extend_from_slice(self.ring);
        bytes.resize(bytes.len() + self.payload_bytes as usize, 0x5A);
        bytes
    }
}

/// Bytes of memory as they stood at a read.
#[derive(Debug)]
struct Sample {
    page: u64,
    word: u64,
    words: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct ReadReply {
    pages: u64,
    wrong_words: u64,
    first_wrong_page: u64,
    sum: u64,
    /// Writes that the canister had seen.
    pub(crate) generation: u64,
    /// (first page, generation), in the order of pages.
    pub(crate) runs: Vec<(u64, u64)>,
    runs_in_all: u64,
    samples: Vec<Sample>,
}

impl ReadReply {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let short = || {
            format!("a read replied {} bytes, which is not the form of a read's reply", bytes.len())
        };
        let words = decode_words(bytes);
        let (head, rest) = words.split_first_chunk::<8>().ok_or_else(short)?;
        let [pages, wrong_words, first_wrong_page, sum, generation, runs, runs_in_all, samples] =
            *head;
        if runs > RUNS_MAX || samples > SAMPLES_MAX {
            return Err(short());
        }
        let (runs, samples_of) = rest.split_at_checked(runs as usize * 2).ok_or_else(short)?;
        if samples_of.len() != samples as usize * (2 + SAMPLE_WORDS) {
            return Err(short());
        }
        let samples = samples_of
            .chunks_exact(2 + SAMPLE_WORDS)
            .map(|sample| Sample { page: sample[0], word: sample[1], words: sample[2..].to_vec() })
            .collect();
        let runs = runs.as_chunks::<2>().0.iter().map(|run| (run[0], run[1])).collect();
        Ok(Self {
            pages,
            wrong_words,
            first_wrong_page,
            sum,
            generation,
            runs,
            runs_in_all,
            samples,
        })
    }

    /// Judges the reply to a read of the pages from `first` on. `floors` has, per page, the newest
    /// generation that was acknowledged before the read was sent; `whole` asks for the sum of
    /// every byte to be computed here too.
    ///
    /// Returns what is wrong.
    #[expect(clippy::too_many_lines, reason = "a table, entry after entry")]
    pub(crate) fn verify(
        &self,
        seed: u64,
        first: u64,
        floors: &[u64],
        whole: bool,
    ) -> Result<(), String> {
        if self.pages != floors.len() as u64 {
            return Err(format!(
                "{} pages were asked for and {} were read",
                floors.len(),
                self.pages
            ));
        }
        if self.wrong_words > 0 {
            return Err(format!(
                "the canister read {} words that were never written; the first is in page {:#x}",
                self.wrong_words, self.first_wrong_page
            ));
        }
        let mut sum = 0_u64;
        for (index, &(page, generation)) in self.runs.iter().enumerate() {
            let truncated = self.runs_in_all > self.runs.len() as u64;
            let end = match self.runs.get(index + 1) {
                Some(&(next, _)) => next,
                // The reply does not state where the last of too many runs ends; its first page is
                // known.
                None if truncated => page + 1,
                None => first + self.pages,
            };
            if page < first
                || end > first + self.pages
                || page >= end
                || (index == 0 && page != first)
            {
                return Err(format!(
                    "the run of pages {page:#x}..{end:#x} is not one of the range read"
                ));
            }
            if generation > self.generation {
                return Err(format!(
                    "page {page:#x} has generation {generation}, but the canister has given out \
                     {} so far: a write that did not happen left bytes",
                    self.generation
                ));
            }
            for (offset, floor) in
                floors[(page - first) as usize..(end - first) as usize].iter().enumerate()
            {
                if generation < *floor {
                    return Err(format!(
                        "page {:#x} has generation {generation}, but generation {floor} was \
                         acknowledged: an acknowledged write is lost",
                        page + offset as u64
                    ));
                }
            }
            if whole {
                sum = (page..end).fold(sum, |sum, page| {
                    sum.wrapping_add(pattern::page_sum(seed, page, generation))
                });
            }
        }
        for sample in &self.samples {
            let generation = self
                .runs
                .iter()
                .rev()
                .find(|(page, _)| *page <= sample.page)
                .map(|(_, generation)| *generation)
                .unwrap_or_default();
            let known = self.runs_in_all == self.runs.len() as u64;
            let right = |(index, word): (usize, &u64)| {
                *word == pattern::word(seed, sample.page, generation, sample.word + index as u64)
            };
            if sample.word + SAMPLE_WORDS as u64 > PAGE_WORDS
                || (known && !sample.words.iter().enumerate().all(right))
            {
                return Err(format!(
                    "the {} bytes at offset {} of page {:#x} are not those of generation \
                     {generation}",
                    SAMPLE_WORDS * 8,
                    sample.word * 8,
                    sample.page
                ));
            }
        }
        if whole && self.runs_in_all == self.runs.len() as u64 && sum != self.sum {
            return Err(format!(
                "the sum of the {} bytes read is {:#x}, and should be {sum:#x}",
                self.pages * PAGE_BYTES,
                self.sum
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two generations over four pages, as the canister would reply.
    fn reply(seed: u64) -> Vec<u64> {
        let pages = [(8, 5), (9, 5), (10, 6), (11, 0)];
        let sum = pages
            .iter()
            .fold(0_u64, |sum, (page, g)| sum.wrapping_add(pattern::page_sum(seed, *page, *g)));
        let mut words = vec![4, 0, u64::MAX, sum, 6, 3, 3, 1, 8, 5, 10, 6, 11, 0, 10, 17];
        words.extend((0..8).map(|index| pattern::word(seed, 10, 6, 17 + index)));
        words
    }

    fn verify(words_of: &[u64], floors: &[u64]) -> Result<(), String> {
        ReadReply::decode(&encode_words(words_of)).unwrap().verify(3, 8, floors, true)
    }

    #[test]
    fn read_reply_verification_detects_every_wrong_field() {
        let good = reply(3);
        assert_eq!(verify(&good, &[5, 4, 6, 0]), Ok(()));
        let lie = |index: usize, value: u64| {
            let mut words = good.clone();
            words[index] = value;
            verify(&words, &[5, 4, 6, 0]).unwrap_err()
        };
        assert!(lie(1, 3).contains("never written"));
        assert!(lie(3, 1).contains("the sum of the 16384 bytes"));
        assert!(lie(4, 5).contains("did not happen"));
        assert!(lie(0, 5).contains("5 were read"));
        assert!(lie(9, 4).contains("acknowledged write is lost"));
        assert!(lie(8, 9).contains("not one of the range"));
        assert!(lie(16, 1).contains("are not those of generation 6"));
        assert!(verify(&good, &[5, 5, 6, 1]).unwrap_err().contains("page 0xb has generation 0"));
    }

    #[test]
    fn replies_of_another_form_are_refused() {
        let good = encode_words(&reply(3));
        assert!(ReadReply::decode(&good[..good.len() - 8]).is_err());
        assert!(ReadReply::decode(&[]).is_err());
        let mut many = reply(3);
        many[5] = u64::MAX;
        assert!(ReadReply::decode(&encode_words(&many)).is_err());
        assert!(Info::decode(&encode_words(&[1, 2, 3, 4, 5, 6, 7])).is_err());
    }

    #[test]
    fn a_route_is_head_ring_and_payload() {
        let ring = ring(&[Principal::from_slice(&[1, 2, 3]), Principal::management_canister()]);
        let route = Route {
            hops_left: 4,
            hop: 0,
            member: 1,
            ring: &ring,
            timeout_seconds: 9,
            payload_bytes: 5,
        }
        .encode();
        assert_eq!(route.len(), 40 + 60 + 5);
        assert_eq!(decode_words(&route[..40]), [4, 0, 1, 2, 9]);
        assert_eq!(route[40..44], [3, 1, 2, 3]);
        assert_eq!(route[70], 0);
        assert_eq!(route[100..], [0x5A; 5]);
    }
}
