//! Where frames of a multiplexer begin and end, as far as knowing how much of one is there, how
//! many bytes are for streams, and how many streams the peer opened.
//!
//! yamux: heads of 12 bytes, the type in the second, flags in the next two (1 opens a stream), the
//! length of the body in the last four, big-endian, with a body only in frames of type 0. mplex: a
//! varint whose last three bits are the type (0 opens a stream, 1 and 2 are for one), a varint
//! length, and as many bytes. (Sources: hashicorp/yamux `spec.md`; libp2p/specs `mplex`.) What is
//! no frame is the multiplexer's to refuse.

/// A position in the stream of frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Framing {
    is_mplex: bool,
    /// Bytes of the head, as far as they are there.
    head: [u8; YAMUX_HEAD_BYTES],
    head_bytes: usize,
    /// mplex: which of its varints is being read, and its value so far.
    varints: usize,
    value: u64,
    /// mplex: the type of the frame.
    kind: u64,
    /// Whether the body is for a stream.
    is_data: bool,
    /// Bytes of the body that have not arrived, and that have.
    missing: u64,
    arrived: u64,
}

/// Content of the bytes that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounts {
    /// Bytes for streams.
    pub(crate) data: u64,
    /// Streams that the peer opened.
    pub(crate) opened: u64,
}

const YAMUX_HEAD_BYTES: usize = 12;
/// Bytes of a varint; a longer one is not a varint.
const VARINT_BYTES_MAX: usize = 10;

impl Framing {
    pub(crate) fn yamux() -> Self {
        Self::default()
    }

    pub(crate) fn mplex() -> Self {
        Self { is_mplex: true, ..Self::default() }
    }

    /// Bytes of the frame that has not arrived whole.
    pub(crate) fn partial(&self) -> u64 {
        if self.missing > 0 { self.arrived } else { self.head_bytes as u64 }
    }

    /// Takes the next bytes of the stream, and counts those that are for streams.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> FrameCounts {
        let mut found = FrameCounts::default();
        while !bytes.is_empty() {
            if self.missing > 0 {
                let taken = self.missing.min(bytes.len() as u64);
                self.missing -= taken;
                self.arrived += taken;
                if self.is_data {
                    found.data += taken;
                }
                bytes = bytes.get(taken as usize..).unwrap_or_default();
            } else if let Some((byte, rest)) = bytes.split_first() {
                bytes = rest;
                found.opened += u64::from(self.read_head(*byte));
            }
        }
        found
    }

    /// One more byte of a head; whether the head, now whole, opens a stream.
    fn read_head(&mut self, byte: u8) -> bool {
        if self.is_mplex {
            self.head_bytes += 1;
            let shift = 7 * (self.head_bytes - 1).min(8);
            self.value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 != 0 && self.head_bytes < VARINT_BYTES_MAX {
                return false;
            }
            self.varints += 1;
            let is_whole = self.varints == 2;
            if is_whole {
                self.begin_body(self.value, matches!(self.kind, 1 | 2));
                self.varints = 0;
            } else {
                self.kind = self.value & 7;
            }
            (self.head_bytes, self.value) = (0, 0);
            return is_whole && self.kind == 0;
        }
        if let Some(place) = self.head.get_mut(self.head_bytes) {
            *place = byte;
        }
        self.head_bytes += 1;
        if self.head_bytes == YAMUX_HEAD_BYTES {
            self.head_bytes = 0;
            let [_, kind, _, flags, _, _, _, _, a, b, c, d] = self.head;
            let body = if kind == 0 { u32::from_be_bytes([a, b, c, d]) } else { 0 };
            self.begin_body(body.into(), true);
            return kind <= 1 && flags & 1 == 1;
        }
        false
    }

    fn begin_body(&mut self, bytes: u64, is_data: bool) {
        self.is_data = is_data;
        self.missing = bytes;
        self.arrived = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of each multiplexer.
    fn yamux(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = if kind == 0 { body.len() as u32 } else { 256 << 10 };
        [&[0, kind, 0, 1, 0, 0, 0, 3][..], &length.to_be_bytes(), body].concat()
    }

    fn mplex(stream: u8, body: &[u8]) -> Vec<u8> {
        let length = [(body.len() & 0x7f) as u8 | 0x80, (body.len() >> 7) as u8];
        [&[stream][..], &length, body].concat()
    }

    fn whole(mut framing: Framing, frames: &[Vec<u8>], cut: usize) {
        let bytes = frames.concat();
        for chunk in bytes.chunks(cut) {
            framing.read(chunk);
            assert!(framing.partial() <= 1000);
        }
        assert_eq!(framing.partial(), 0, "cut every {cut}");
    }

    #[test]
    fn frames_end_where_they_end_however_they_arrive() {
        for cut in [1, 2, 7, 11, 12, 13, 100, 10_000] {
            let frames = [yamux(0, &[9; 1000]), yamux(1, &[]), yamux(0, &[]), yamux(0, &[1; 3])];
            whole(Framing::yamux(), &frames, cut);
            whole(
                Framing::mplex(),
                &[mplex(1, &[9; 1000]), mplex(2, &[]), mplex(3, &[1; 200])],
                cut,
            );
        }
    }

    #[test]
    fn what_has_arrived_of_a_frame_is_known() {
        let mut framing = Framing::yamux();
        framing.read(&yamux(0, &[1; 500])[..112]);
        assert_eq!(framing.partial(), 100);
        let mut framing = Framing::mplex();
        framing.read(&mplex(1, &[1; 500])[..103]);
        assert_eq!(framing.partial(), 100);
    }

    // Promise: P24 - Unread bytes of streams are counted over both multiplexers.
    #[test]
    fn bytes_for_streams_and_streams_that_are_opened_are_counted() {
        let mut framing = Framing::yamux();
        // Stream 3 is opened by a frame with data and acknowledged by one without; a ping has the
        // flag too.
        let open = [&[0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 5][..], &[1; 5]].concat();
        let acknowledge = [0, 1, 0, 2, 0, 0, 0, 3, 0, 4, 0, 0];
        let ping = [0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(framing.read(&open), FrameCounts { data: 5, opened: 1 });
        assert_eq!(framing.read(&[acknowledge, ping].concat()), FrameCounts::default());
        let mut framing = Framing::mplex();
        // Its name is not for a stream, what follows is; closing it is neither.
        assert_eq!(framing.read(&mplex(3 << 3, b"3")), FrameCounts { data: 0, opened: 1 });
        assert_eq!(
            framing.read(&mplex(3 << 3 | 2, &[1; 200])),
            FrameCounts { data: 200, opened: 0 }
        );
        assert_eq!(framing.read(&mplex(3 << 3 | 4, &[])), FrameCounts::default());
    }
}
