//! The wire between the pool and a worker: one stream socket, strictly one frame out and one frame
//! back, with descriptors attached.
//!
//! A frame is two little-endian 32-bit numbers, the length of the body and the number of
//! descriptors, and then the body, a postcard value. Descriptors travel as `SCM_RIGHTS` with the
//! first bytes of the frame. Neither side ever sends while it may be sent to, so a receiver never
//! reads into the next frame.
//!
//! # Bounds
//!
//! The receiver sets the maximum length of a body before it reads one, and no frame carries more
//! than [`DESCRIPTORS_MAX`] descriptors. A frame beyond either is an error that ends the
//! connection; descriptors that came with it are closed. The scratch buffer is released after a
//! large frame.
//!
//! This module knows nothing of the contents of frames.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::{Duration, Instant},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Serialize, de::DeserializeOwned};

/// Descriptors one frame may carry: as many as the kernel allows.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

const HEADER_BYTES: usize = 8;

/// Maximum of one read, and size of the scratch buffer between frames.
const SCRATCH_BYTES: usize = 64 * 1024;

/// Why a frame could not be sent or received. Each ends the connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IpcError {
    #[error("the other side closed the connection")]
    Closed,
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("a frame of {bytes} bytes, the limit is {bytes_max} bytes")]
    TooLong {
        /// Length of the body that the header announces.
        bytes: usize,
        /// Longest body that the receiver takes.
        bytes_max: usize,
    },
    #[error("a frame with {descriptors} descriptors, the limit is {DESCRIPTORS_MAX}")]
    TooManyDescriptors {
        /// Number of descriptors; `DESCRIPTORS_MAX + 1` where the kernel cut off received ones.
        descriptors: usize,
    },
    #[error("a malformed frame: {0}")]
    Malformed(&'static str),
    #[error("a frame that does not decode: {0}")]
    Codec(#[from] postcard::Error),
}

#[derive(Debug)]
pub(crate) struct Channel {
    socket: UnixStream,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    timeout: Option<Duration>,
}

impl Channel {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self { socket, outgoing: Vec::new(), incoming: Vec::new(), timeout: None }
    }

    /// How long [`Self::receive`] waits for bytes; `None` waits for ever.
    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), IpcError> {
        if self.timeout != timeout {
            self.socket.set_read_timeout(timeout)?;
            self.timeout = timeout;
        }
        Ok(())
    }

    pub(crate) fn send<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), IpcError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(IpcError::TooManyDescriptors { descriptors: descriptors.len() });
        }
        let mut frame = std::mem::take(&mut self.outgoing);
        frame.clear();
        frame.resize(HEADER_BYTES, 0);
        let mut frame = postcard::to_extend(message, frame)?;
        let body = u32::try_from(frame.len() - HEADER_BYTES)
            .map_err(|_| IpcError::Malformed("a body beyond 4 GiB"))?;
        frame[..4].copy_from_slice(&body.to_le_bytes());
        frame[4..HEADER_BYTES].copy_from_slice(&(descriptors.len() as u32).to_le_bytes());
        let sent = self.send_bytes(&frame, descriptors);
        if frame.capacity() <= 4 * SCRATCH_BYTES {
            self.outgoing = frame;
        }
        sent
    }

    fn send_bytes(&mut self, frame: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), IpcError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(IpcError::TooManyDescriptors { descriptors: descriptors.len() });
        }
        let first = loop {
            match sendmsg(&self.socket, &[IoSlice::new(frame)], &mut control, SendFlags::NOSIGNAL) {
                Ok(bytes) => break bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(closed_or(error.into())),
            }
        };
        self.socket.write_all(&frame[first..]).map_err(closed_or)
    }

    /// Receives one frame whose body is at most `bytes_max` long.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
    ) -> Result<(T, Vec<OwnedFd>), IpcError> {
        // Kept at its full length between frames, so that a small frame does not pay for clearing
        // it.
        let mut frame = std::mem::take(&mut self.incoming);
        frame.resize(SCRATCH_BYTES, 0);
        let mut descriptors = Vec::new();
        let mut filled = 0;
        while filled < HEADER_BYTES {
            filled += self.receive_some(&mut frame[filled..], &mut descriptors)?;
        }
        let word = |at: usize| {
            u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]) as usize
        };
        let (body, announced) = (word(0), word(4));
        if body > bytes_max {
            return Err(IpcError::TooLong { bytes: body, bytes_max });
        }
        let end = HEADER_BYTES + body;
        if filled > end {
            return Err(IpcError::Malformed("bytes beyond the frame"));
        }
        if end > frame.len() {
            frame.resize(end, 0);
        }
        self.socket
            .read_exact(&mut frame[filled..end])
            .map_err(|error| self.timed_out_or(error))?;
        if descriptors.len() != announced {
            return Err(IpcError::Malformed("another number of descriptors than announced"));
        }
        let message = postcard::from_bytes(&frame[HEADER_BYTES..end]);
        if end <= 4 * SCRATCH_BYTES {
            self.incoming = frame;
        }
        Ok((message?, descriptors))
    }

    /// The first bytes of a frame, and the descriptors that came with them.
    fn receive_some(
        &self,
        buffer: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<usize, IpcError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        self.wait_until_readable()?;
        let received = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(buffer)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(received) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.timed_out_or(error.into())),
            }
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(IpcError::TooManyDescriptors { descriptors: DESCRIPTORS_MAX + 1 });
        }
        if received.bytes == 0 {
            return Err(IpcError::Closed);
        }
        Ok(received.bytes)
    }

    /// Waits until there is something to read. A thread that waits in `recvmsg` itself is woken in
    /// vain when the other side takes the data sent before, which makes room for more; that would
    /// be two further context switches for each message.
    fn wait_until_readable(&self) -> Result<(), IpcError> {
        let deadline = self.timeout.map(|timeout| (Instant::now(), timeout));
        loop {
            let left = match deadline {
                Some((since, timeout)) => {
                    let left = timeout.saturating_sub(since.elapsed());
                    Some(Timespec::try_from(left).map_err(|_| IpcError::TimedOut(timeout))?)
                }
                None => None,
            };
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], left.as_ref()) {
                Ok(0) => return Err(IpcError::TimedOut(self.timeout.unwrap_or_default())),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(IpcError::Io(error.into())),
            }
        }
    }

    fn timed_out_or(&self, error: io::Error) -> IpcError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                IpcError::TimedOut(self.timeout.unwrap_or_default())
            }
            _ => closed_or(error),
        }
    }
}

fn closed_or(error: io::Error) -> IpcError {
    match error.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::UnexpectedEof => IpcError::Closed,
        _ => IpcError::Io(error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{io::Seek, os::fd::AsFd};

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (left, right) = UnixStream::pair().unwrap();
        (Channel::new(left), Channel::new(right))
    }

    #[test]
    fn frames_carry_bytes_and_descriptors() {
        let (mut left, mut right) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"kept").unwrap();
        for round in 0..3_u8 {
            left.send(&vec![round; 100], &[file.as_fd(), file.as_fd()]).unwrap();
            let (body, descriptors): (Vec<u8>, _) = right.receive(1000).unwrap();
            assert_eq!(body, vec![round; 100]);
            assert_eq!(descriptors.len(), 2);
            let mut copy = std::fs::File::from(descriptors.into_iter().next().unwrap());
            copy.rewind().unwrap();
            let mut text = String::new();
            copy.read_to_string(&mut text).unwrap();
            assert_eq!(text, "kept");
        }
    }

    #[test]
    fn large_frames_pass_and_longer_ones_are_refused() {
        let (mut left, mut right) = pair();
        let body = vec![7_u8; 3_000_000];
        let sender = std::thread::spawn({
            let body = body.clone();
            move || {
                left.send(&body, &[]).unwrap();
                left.send(&body, &[]).ok();
            }
        });
        let (received, _): (Vec<u8>, _) = right.receive(4_000_000).unwrap();
        assert_eq!(received, body);
        assert!(matches!(
            right.receive::<Vec<u8>>(2_000_000),
            Err(IpcError::TooLong { bytes_max: 2_000_000, .. })
        ));
        drop(right);
        sender.join().unwrap();
    }

    #[test]
    fn channel_distinguishes_a_timeout_from_a_closed_peer() {
        let (left, mut right) = pair();
        right.set_timeout(Some(Duration::from_millis(10))).unwrap();
        assert!(matches!(right.receive::<u8>(10), Err(IpcError::TimedOut(_))));
        drop(left);
        assert!(matches!(right.receive::<u8>(10), Err(IpcError::Closed)));
        assert!(matches!(right.send(&1_u8, &[]), Err(IpcError::Closed)));
    }

    #[test]
    fn too_many_descriptors_are_refused_before_sending() {
        let (mut left, _right) = pair();
        let file = tempfile::tempfile().unwrap();
        let many = vec![file.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(matches!(left.send(&0_u8, &many), Err(IpcError::TooManyDescriptors { .. })));
    }
}
