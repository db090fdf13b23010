//! The payload of a test message: its sender, number, send time, and a checksum.
//!
//! Bounds: a payload has at least [`HEADER_BYTES`] and at most [`PAYLOAD_BYTES_MAX`] bytes. Must
//! never know: Waku messages, connections and clocks.
//!
//! All numbers are big-endian:
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | the letters `thst` |
//! | 4 | 4 | CRC-32 of everything from offset 8 |
//! | 8 | 8 | run |
//! | 16 | 2 | phase |
//! | 18 | 2 | sender |
//! | 20 | 4 | length of the whole payload |
//! | 24 | 8 | sequence number within phase and sender, from 0 |
//! | 32 | 8 | send time, nanoseconds since the start of the run |
//! | 40 | | pseudo-random bytes |

use std::sync::LazyLock;

use rand::{RngCore, SeedableRng, rngs::StdRng};
use thiserror::Error;

/// Bytes before the pseudo-random ones, which the shortest payload has.
pub(crate) const HEADER_BYTES: usize = 40;
/// Longest payload that fits a Waku message with its topic and timestamp.
pub(crate) const PAYLOAD_BYTES_MAX: usize = protocol::message::MESSAGE_BYTES_MAX - 512;

const MAGIC: [u8; 4] = *b"thst";
/// Where the checksum begins.
const SUMMED_FROM: usize = 8;
/// Offsets into the pseudo-random bytes at which a message may begin.
const FILLER_STARTS: usize = 1 << 16;

/// Made once: generating new bytes for each message would cost more than sending them.
static FILLER: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = vec![0; FILLER_STARTS + PAYLOAD_BYTES_MAX];
    StdRng::seed_from_u64(0).fill_bytes(&mut bytes);
    bytes
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Distinguishes the messages of this run from those of others.
    pub(crate) run: u64,
    pub(crate) phase: u16,
    pub(crate) sender: u16,
    pub(crate) sequence: u64,
    /// When it was sent, nanoseconds since the start of the run.
    pub(crate) sent_nanos: u64,
}

/// Why a payload is not one of ours, or not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum Damage {
    /// No bytes of this format.
    #[error("not a payload of this driver")]
    Foreign,
    /// Fewer or more bytes than were sent.
    #[error("{bytes} bytes arrived of {announced}")]
    Length {
        bytes: usize,
        /// Number of bytes sent, as stated in the payload.
        announced: usize,
    },
    #[error("the checksum does not hold")]
    Checksum,
}

/// Appends a payload of `bytes` bytes to `out`; the length is brought between [`HEADER_BYTES`] and
/// [`PAYLOAD_BYTES_MAX`].
pub(crate) fn write(header: &Header, bytes: usize, out: &mut Vec<u8>) {
    let bytes = bytes.clamp(HEADER_BYTES, PAYLOAD_BYTES_MAX);
    let from = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&header.run.to_be_bytes());
    out.extend_from_slice(&header.phase.to_be_bytes());
    out.extend_from_slice(&header.sender.to_be_bytes());
    out.extend_from_slice(&(bytes as u32).to_be_bytes());
    out.extend_from_slice(&header.sequence.to_be_bytes());
    out.extend_from_slice(&header.sent_nanos.to_be_bytes());
    debug_assert_eq!(out.len() - from, HEADER_BYTES);
    let start = header.sequence.wrapping_mul(0x9E37_79B9) as usize % FILLER_STARTS;
    out.extend_from_slice(&FILLER[start..start + bytes - HEADER_BYTES]);
    let sum = crc32fast::hash(&out[from + SUMMED_FROM..]);
    out[from + 4..from + SUMMED_FROM].copy_from_slice(&sum.to_be_bytes());
}

/// Reads a payload and checks that it is whole.
pub(crate) fn read(payload: &[u8]) -> Result<Header, Damage> {
    let Some((head, _)) = payload.split_first_chunk::<HEADER_BYTES>() else {
        return Err(Damage::Foreign);
    };
    if head[..4] != MAGIC {
        return Err(Damage::Foreign);
    }
    let announced = number(head, 20, 4) as usize;
    if announced != payload.len() {
        return Err(Damage::Length { bytes: payload.len(), announced });
    }
    if u64::from(crc32fast::hash(&payload[SUMMED_FROM..])) != number(head, 4, 4) {
        return Err(Damage::Checksum);
    }
    Ok(Header {
        run: number(head, 8, 8),
        phase: number(head, 16, 2) as u16,
        sender: number(head, 18, 2) as u16,
        sequence: number(head, 24, 8),
        sent_nanos: number(head, 32, 8),
    })
}

fn number(head: &[u8; HEADER_BYTES], offset: usize, bytes: usize) -> u64 {
    head[offset..offset + bytes].iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Header> {
        any::<(u64, u16, u16, u64, u64)>().prop_map(|(run, phase, sender, sequence, sent_nanos)| {
            Header { run, phase, sender, sequence, sent_nanos }
        })
    }

    proptest! {
        #[test]
        fn written_payload_reads_back(header in headers(), bytes in 0..200_000_usize) {
            let mut out = vec![7; 3];
            write(&header, bytes, &mut out);
            prop_assert_eq!(out.len() - 3, bytes.clamp(HEADER_BYTES, PAYLOAD_BYTES_MAX));
            prop_assert_eq!(read(&out[3..]), Ok(header));
        }

        #[test]
        fn any_changed_bit_is_noticed(
            header in headers(), bytes in HEADER_BYTES..3000, place in any::<prop::sample::Index>(),
            bit in 0..8_u32,
        ) {
            let mut out = Vec::new();
            write(&header, bytes, &mut out);
            let place = place.index(out.len());
            out[place] ^= 1 << bit;
            prop_assert!(read(&out).is_err());
        }

        #[test]
        fn truncated_or_extended_payload_is_damaged(header in headers(), cut in 0..500_usize) {
            let mut out = Vec::new();
            write(&header, 500, &mut out);
            prop_assert!(read(&out[..cut]).is_err());
            out.push(0);
            prop_assert_eq!(read(&out), Err(Damage::Length { bytes: 501, announced: 500 }));
        }
    }

    #[test]
    fn the_format_is_pinned() {
        let header = Header { run: 1, phase: 2, sender: 3, sequence: 4, sent_nanos: 5 };
        let mut out = Vec::new();
        write(&header, 0, &mut out);
        let sum = crc32fast::hash(&out[8..]).to_be_bytes();
        let expected: Vec<u8> = [
            b"thst".as_slice(),
            &sum,
            &1_u64.to_be_bytes(),
            &[0, 2],
            &[0, 3],
            &[0, 0, 0, 40],
            &4_u64.to_be_bytes(),
            &5_u64.to_be_bytes(),
        ]
        .concat();
        assert_eq!(out, expected);
    }

    #[test]
    fn large_messages_fit_a_waku_message() {
        let topic = "/thimble-stress/4294967295/run-ffffffffffffffff/proto";
        let payload = vec![0; PAYLOAD_BYTES_MAX];
        let message = protocol::WakuMessage {
            timestamp: Some(i64::MAX),
            ..protocol::WakuMessage::new(topic, payload)
        };
        assert!(message.encode().len() <= protocol::message::MESSAGE_BYTES_MAX);
    }
}
