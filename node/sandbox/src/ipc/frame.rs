//! How frames go through a ring: two machines that never wait, so that a test or a fuzzer can be
//! the other side at every step.
//!
//! A frame is two little-endian 32-bit numbers, the length of the body and the number of
//! descriptors that come with it over the socket, and then the body. It begins at the start of the
//! ring. One that is longer than the ring goes in pieces: the writer fills what is free, the reader
//! takes all that is there, and so on; a writer never overwrites what the other side has not
//! published as taken.
//!
//! A position that cannot be, a body longer than the reader allows, or bytes beyond the frame end
//! the connection. This module knows nothing of the contents of bodies.

use super::{
    DESCRIPTORS_MAX, IpcError,
    ring::{Cursor, OwnRing, PeerRing},
};

/// Bytes of a frame before its body.
pub(super) const HEADER_BYTES: usize = 8;

/// Longest body, whatever the reader allows: positions of one frame do not wrap.
const BODY_BYTES_MAX: usize = 1 << 30;

/// How a step of a frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing more can be done before the other side's position is another than this.
    Wait(u32),
    /// The frame is over.
    Done,
}

fn header(body: usize, descriptors: usize) -> Result<[u8; HEADER_BYTES], IpcError> {
    if body > BODY_BYTES_MAX {
        return Err(IpcError::TooLong { bytes: body, bytes_max: BODY_BYTES_MAX });
    }
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&(body as u32).to_le_bytes());
    header[4..].copy_from_slice(&(descriptors as u32).to_le_bytes());
    Ok(header)
}

/// Has `encode` write the body of a frame where it is read, and publishes the frame. `false` if it
/// is too long for that, and nothing was published.
pub(super) fn write_in_place(
    own: &mut OwnRing,
    peer: &PeerRing,
    descriptors: usize,
    encode: impl FnOnce(&mut [u8]) -> Result<usize, postcard::Error>,
) -> Result<bool, IpcError> {
    let start = own.position(Cursor::Written);
    if peer.position(Cursor::Taken) != start {
        return Ok(false);
    }
    let (before, body) = own.data().split_at_mut(HEADER_BYTES);
    let bytes = match encode(body) {
        Ok(bytes) => bytes,
        Err(postcard::Error::SerializeBufferFull) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    before.copy_from_slice(&header(bytes, descriptors)?);
    own.publish(Cursor::Written, start.wrapping_add((HEADER_BYTES + bytes) as u32), peer);
    Ok(true)
}

/// A frame being written.
#[derive(Debug)]
pub(crate) struct Outgoing {
    /// Position of its first byte.
    start: u32,
    sent: usize,
    frame: Vec<u8>,
}

impl Outgoing {
    /// A frame of the header's room and a body behind it, with a number of descriptors.
    pub(crate) fn new(
        own: &OwnRing,
        mut frame: Vec<u8>,
        descriptors: usize,
    ) -> Result<Self, IpcError> {
        let Some((before, body)) = frame.split_at_mut_checked(HEADER_BYTES) else {
            return Err(IpcError::Malformed("a frame without room for its header"));
        };
        before.copy_from_slice(&header(body.len(), descriptors)?);
        Ok(Self { start: own.position(Cursor::Written), sent: 0, frame })
    }

    /// Writes what there is room for; to be called again when [`Cursor::Taken`] changed.
    pub(crate) fn step(&mut self, own: &mut OwnRing, peer: &PeerRing) -> Result<Step, IpcError> {
        let position = peer.position(Cursor::Taken);
        let taken = position.wrapping_sub(self.start) as usize;
        // Both sides of a frame are bounded: no more is taken than was sent, and no more waits than
        // there is room for.
        let free = self
            .sent
            .checked_sub(taken)
            .and_then(|waiting| own.capacity().checked_sub(waiting))
            .ok_or(IpcError::Malformed("more was taken than sent, or less than before"))?;
        let rest = self.frame.get(self.sent..).unwrap_or_default();
        let piece = &rest[..free.min(rest.len())];
        if piece.is_empty() {
            return Ok(Step::Wait(position));
        }
        own.write(self.sent, piece);
        self.sent += piece.len();
        own.publish(Cursor::Written, self.start.wrapping_add(self.sent as u32), peer);
        Ok(if self.sent == self.frame.len() { Step::Done } else { Step::Wait(position) })
    }
}

/// What the beginning of a frame says.
#[derive(Clone, Copy, Debug)]
struct Header {
    /// Length of the body.
    body: usize,
    descriptors: usize,
}

/// A frame being read.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Position of its first byte.
    start: u32,
    taken: usize,
    bytes_max: usize,
    header: Option<Header>,
    body: Vec<u8>,
}

impl Incoming {
    /// The next frame, whose body, of at most `bytes_max`, is put into `body`.
    pub(crate) fn new(own: &OwnRing, mut body: Vec<u8>, bytes_max: usize) -> Self {
        body.clear();
        let bytes_max = bytes_max.min(BODY_BYTES_MAX);
        Self { start: own.position(Cursor::Taken), taken: 0, bytes_max, header: None, body }
    }

    /// Takes what is there; to be called again when [`Cursor::Written`] changed.
    pub(crate) fn step(&mut self, own: &mut OwnRing, peer: &PeerRing) -> Result<Step, IpcError> {
        let position = peer.position(Cursor::Written);
        let written = position.wrapping_sub(self.start) as usize;
        let new = written
            .checked_sub(self.taken)
            .filter(|new| *new <= peer.capacity())
            .ok_or(IpcError::Malformed("less was written than before, or more than fits"))?;
        if new == 0 {
            return Ok(Step::Wait(position));
        }
        let header = match self.header {
            Some(header) => header,
            None => self.take_header(peer, new)?,
        };
        let end = HEADER_BYTES + header.body;
        if written > end {
            return Err(IpcError::Malformed("bytes beyond the frame"));
        }
        let filled = self.body.len();
        self.body.resize(filled + written - self.taken, 0);
        peer.copy(self.taken, &mut self.body[filled..]);
        self.taken = written;
        own.publish(Cursor::Taken, position, peer);
        Ok(if written == end { Step::Done } else { Step::Wait(position) })
    }

    /// Takes the header of a frame of which `written` bytes are there, and finds room for the body.
    fn take_header(&mut self, peer: &PeerRing, written: usize) -> Result<Header, IpcError> {
        if written < HEADER_BYTES {
            return Err(IpcError::Malformed("a piece of a header"));
        }
        let mut bytes = [0; HEADER_BYTES];
        peer.copy(0, &mut bytes);
        let [a, b, c, d, e, f, g, h] = bytes;
        let body = u32::from_le_bytes([a, b, c, d]) as usize;
        let descriptors = u32::from_le_bytes([e, f, g, h]) as usize;
        if body > self.bytes_max {
            return Err(IpcError::TooLong { bytes: body, bytes_max: self.bytes_max });
        }
        if descriptors > DESCRIPTORS_MAX {
            return Err(IpcError::TooManyDescriptors { descriptors });
        }
        let header = Header { body, descriptors };
        self.header = Some(header);
        self.taken = HEADER_BYTES;
        // One piece of memory, which is touched as bytes come.
        self.body.reserve_exact(body);
        Ok(header)
    }

    /// The body of a frame that is over, and the number of descriptors that come with it.
    pub(crate) fn finish(self) -> (Vec<u8>, usize) {
        (self.body, self.header.map_or(0, |header| header.descriptors))
    }
}
