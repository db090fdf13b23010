//! Where frames of a multiplexer end, for whatever bytes a connection brings in whatever pieces.
//!
//! The first byte chooses: its lowest bit the multiplexer, its next whether the rest is taken as it
//! is or as lengths and kinds of frames that are made here. The second byte is the length of the
//! pieces.

use crate::network::framing::Framing;

/// Bytes of the frame that `bytes` do not complete, looked at as a whole.
fn partial_yamux(mut bytes: &[u8]) -> usize {
    while let Some((head, rest)) = bytes.split_first_chunk::<12>() {
        let length = u32::from_be_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let length = if head[1] == 0 { length } else { 0 };
        if rest.len() < length {
            return rest.len();
        }
        bytes = &rest[length..];
    }
    bytes.len()
}

/// A frame of the multiplexer.
fn frame(is_mplex: bool, kind: u8, length: usize) -> Vec<u8> {
    if is_mplex {
        let number = (usize::from(kind) << 7) | usize::from(kind);
        let mut frame = protocol::frame::encode_length(number);
        frame.extend_from_slice(&protocol::frame::encode_length(length));
        frame.resize(frame.len() + length, 0xff);
        return frame;
    }
    let mut frame = vec![0, kind, 0, 1, 0, 0, 0, 1];
    frame.extend_from_slice(&(length as u32).to_be_bytes());
    frame.resize(12 + if kind == 0 { length } else { 0 }, 0xff);
    frame
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let [choice, piece, rest @ ..] = bytes else { return };
    let is_mplex = choice % 2 == 1;
    let start = || if is_mplex { Framing::mplex() } else { Framing::yamux() };
    let piece = usize::from(*piece).max(1);
    let made = choice & 2 != 0;
    let stream: Vec<u8> = if made {
        let frames = rest.chunks_exact(3).take(64);
        let frames = frames
            .map(|made| frame(is_mplex, made[0], u16::from_be_bytes([made[1], made[2]]).into()));
        frames.collect::<Vec<_>>().concat()
    } else {
        rest.to_vec()
    };
    let mut whole = start();
    whole.read(&stream);
    assert!(whole.partial() <= stream.len() as u64);
    let (mut pieces, mut read) = (start(), 0);
    for part in stream.chunks(piece) {
        pieces.read(part);
        read += part.len();
        assert!(pieces.partial() <= read as u64);
        if !is_mplex && stream.len() < 4096 {
            assert_eq!(pieces.partial(), partial_yamux(&stream[..read]) as u64);
        }
    }
    assert_eq!(pieces.partial(), whole.partial(), "it depends on the pieces");
    if made {
        assert_eq!(whole.partial(), 0, "all frames are whole");
    }
}
