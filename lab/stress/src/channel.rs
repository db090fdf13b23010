//! One stream: agreeing on its protocol (multistream-select 1.0), and the frames on it.
//!
//! Written out here because a push is one stream of a few packets: proposal and request leave in
//! one write, as the specification allows a dialer that has a single protocol to propose.
//!
//! Bounds: a name of a protocol has at most [`NAME_BYTES_MAX`] bytes, a peer may propose
//! [`PROPOSALS_MAX`] of them, the caller states the longest frame. Must never know: the content of
//! the stream, and its connection.

use std::io::{self, ErrorKind};

use bytes::Bytes;
use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::core::muxing::SubstreamBox;
use protocol::frame;

const HEADER: &[u8] = b"\x13/multistream/1.0.0\n";
const NOT_AVAILABLE: &[u8] = b"\x03na\n";
/// Longest name of a protocol, with its line end.
const NAME_BYTES_MAX: usize = 140;
/// Names a peer may propose on one stream.
const PROPOSALS_MAX: usize = 16;
/// Read at once, when it is not known how much comes.
const READ_BYTES: usize = 2048;
/// A frame's memory grows in such steps until it has come.
const FRAME_STEP_BYTES: usize = 256 << 10;

/// First message of a dialer: the multistream protocol, and the protocol it wants.
pub(crate) fn proposal(name: &str) -> Vec<u8> {
    let mut bytes = HEADER.to_vec();
    put_name(name, &mut bytes);
    bytes
}

fn put_name(name: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&frame::encode_length(name.len() + 1));
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text.into())
}

pub(crate) struct Channel {
    stream: SubstreamBox,
    /// Bytes read; those before `used` are consumed.
    buffer: Vec<u8>,
    used: usize,
}

impl Channel {
    pub(crate) fn new(stream: SubstreamBox) -> Self {
        Self { stream, buffer: Vec::new(), used: 0 }
    }

    /// Opens the protocol `name` on a new stream; `first` leaves together with the proposal.
    /// Errors: those of [`Self::confirm`].
    pub(crate) async fn open(stream: SubstreamBox, name: &str, first: &[u8]) -> io::Result<Self> {
        let proposal = proposal(name);
        let mut channel = Self::new(stream);
        channel.write(&[proposal.as_slice(), first].concat()).await?;
        channel.confirm(&proposal).await?;
        Ok(channel)
    }

    fn unread(&self) -> &[u8] {
        self.buffer.get(self.used..).unwrap_or_default()
    }

    /// Reads some more; false at the end.
    async fn fill(&mut self) -> io::Result<bool> {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        let from = self.buffer.len();
        self.buffer.resize(from + READ_BYTES, 0);
        let read = match self.buffer.get_mut(from..) {
            Some(room) => self.stream.read(room).await,
            None => Ok(0),
        };
        self.buffer.truncate(from + *read.as_ref().unwrap_or(&0));
        Ok(read? > 0)
    }

    /// Waits for the answer to `proposal`. Errors: the peer does not speak the protocol
    /// ([`ErrorKind::Unsupported`]), or the stream breaks.
    pub(crate) async fn confirm(&mut self, proposal: &[u8]) -> io::Result<()> {
        loop {
            let unread = self.unread();
            if unread.starts_with(proposal) {
                self.used += proposal.len();
                return Ok(());
            }
            if !proposal.starts_with(unread) {
                return Err(io::Error::new(
                    ErrorKind::Unsupported,
                    "the node does not speak the protocol",
                ));
            }
            if !self.fill().await? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Agrees on one of `served` with a peer that opened the stream; `None` when it wants none of
    /// them or sends nothing.
    pub(crate) async fn accept(
        &mut self,
        served: &[&'static str],
    ) -> io::Result<Option<&'static str>> {
        let mut answer = Vec::new();
        for _ in 0..PROPOSALS_MAX {
            let Some(name) = self.name().await? else { return Ok(None) };
            if name == "/multistream/1.0.0" {
                answer.extend_from_slice(HEADER);
                if !self.unread().is_empty() {
                    // Its proposal has already arrived: one answer to both.
                    continue;
                }
            } else if let Some(found) = served.iter().find(|served| **served == name) {
                put_name(found, &mut answer);
                self.write(&answer).await?;
                return Ok(Some(found));
            } else {
                answer.extend_from_slice(NOT_AVAILABLE);
            }
            self.write(&answer).await?;
            answer.clear();
        }
        Err(invalid(format!("a peer proposed more than {PROPOSALS_MAX} protocols on one stream")))
    }

    /// The next name a peer sends; `None` at the end of the stream.
    async fn name(&mut self) -> io::Result<Option<String>> {
        let Some((bytes, prefix)) = self.length(NAME_BYTES_MAX).await? else { return Ok(None) };
        while self.unread().len() < prefix + bytes {
            if !self.fill().await? {
                return Ok(None);
            }
        }
        let name = self.unread().get(prefix..prefix + bytes).unwrap_or_default();
        let name = name.strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| invalid("a protocol's name has no line end"))?.to_owned();
        self.used += prefix + bytes;
        Ok(Some(name))
    }

    /// Length of what comes next and of its prefix; `None` at the end of the stream.
    async fn length(&mut self, bytes_max: usize) -> io::Result<Option<(usize, usize)>> {
        loop {
            let found = frame::decode_length(self.unread(), bytes_max);
            if let Some(found) = found.map_err(|error| invalid(error.to_string()))? {
                return Ok(Some(found));
            }
            let torn = !self.unread().is_empty();
            if !self.fill().await? {
                return if torn { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
            }
        }
    }

    /// The next frame, without its length; `None` at the end of the stream.
    pub(crate) async fn frame(&mut self, bytes_max: usize) -> io::Result<Option<Bytes>> {
        let Some((bytes, prefix)) = self.length(bytes_max).await? else { return Ok(None) };
        self.used += prefix;
        let mut have = bytes.min(self.unread().len());
        let mut body = Vec::with_capacity(bytes.min(FRAME_STEP_BYTES));
        body.extend_from_slice(self.unread().get(..have).unwrap_or_default());
        self.used += have;
        while have < bytes {
            if have == body.len() {
                body.resize(bytes.min(have + FRAME_STEP_BYTES), 0);
            }
            let read = match body.get_mut(have..) {
                Some(room) => self.stream.read(room).await?,
                None => 0,
            };
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            have += read;
        }
        Ok(Some(body.into()))
    }

    /// Exactly `bytes` bytes without a length before them; `None` at the end of the stream.
    pub(crate) async fn exact(&mut self, bytes: usize) -> io::Result<Option<Vec<u8>>> {
        while self.unread().len() < bytes {
            if !self.fill().await? {
                return Ok(None);
            }
        }
        let taken = self.unread().get(..bytes).unwrap_or_default().to_vec();
        self.used += bytes;
        Ok(Some(taken))
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Closes the writing side.
    pub(crate) async fn close(&mut self) -> io::Result<()> {
        self.stream.close().await
    }
}

/// One request in the protocol `name`, and its reply: `bytes_max` bytes at most.
pub(crate) async fn request(
    stream: SubstreamBox,
    name: &str,
    body: &[u8],
    bytes_max: usize,
) -> io::Result<Bytes> {
    let mut channel = Channel::open(stream, name, &frame::with_length(body)).await?;
    let reply = channel.frame(bytes_max).await?.ok_or(ErrorKind::UnexpectedEof)?;
    // The peer may have gone by now; its reply is here.
    let _ = channel.close().await;
    Ok(reply)
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::{Arc, Mutex},
        task::{Context, Poll},
    };

    use futures::{AsyncRead, AsyncWrite, executor::block_on};

    use super::*;

    /// A stream whose other side sent `script`, of which at most `step` bytes come at once.
    struct ScriptedStream {
        script: Vec<u8>,
        step: usize,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl AsyncRead for ScriptedStream {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            room: &mut [u8],
        ) -> Poll<io::Result<usize>> {
            let count = self.step.min(room.len()).min(self.script.len());
            let come: Vec<u8> = self.script.drain(..count).collect();
            room[..count].copy_from_slice(&come);
            Poll::Ready(Ok(count))
        }
    }

    impl AsyncWrite for ScriptedStream {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            self.written.lock().unwrap().extend_from_slice(bytes);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn channel(script: &[u8], step: usize) -> (Channel, Arc<Mutex<Vec<u8>>>) {
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let stream = ScriptedStream { script: script.to_vec(), step, written: written.clone() };
        (Channel::new(SubstreamBox::new(stream)), written)
    }

    #[test]
    fn a_request_is_answered_however_its_bytes_arrive() {
        let script =
            [proposal("/a/1"), frame::with_length(b"reply"), frame::with_length(&[7; 5000])]
                .concat();
        for step in [1, 2, 3, 7, 1000, 1 << 20] {
            let (mut channel, _) = channel(&script, step);
            block_on(channel.confirm(&proposal("/a/1"))).unwrap();
            assert_eq!(block_on(channel.frame(10)).unwrap().unwrap(), "reply");
            assert_eq!(block_on(channel.frame(5000)).unwrap().unwrap().len(), 5000);
            assert!(block_on(channel.frame(10)).unwrap().is_none());
        }
    }

    #[test]
    fn unsupported_protocol_fails_without_waiting() {
        for answer in [[HEADER, NOT_AVAILABLE].concat(), b"\x04/b/2".to_vec()] {
            let (mut channel, _) = channel(&answer, 1);
            let error = block_on(channel.confirm(&proposal("/a/1"))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
        let (mut channel, _) = channel(HEADER, 5);
        let error = block_on(channel.confirm(&proposal("/a/1"))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_peer_gets_the_first_protocol_it_proposes_that_is_served() {
        let mut script = proposal("/other/1");
        put_name("/a/1", &mut script);
        script.extend_from_slice(&frame::with_length(b"push"));
        for step in [1, 5, 1 << 20] {
            let (mut channel, written) = channel(&script, step);
            assert_eq!(block_on(channel.accept(&["/b/1", "/a/1"])).unwrap(), Some("/a/1"));
            assert_eq!(block_on(channel.frame(10)).unwrap().unwrap(), "push");
            let mut expected = [HEADER, NOT_AVAILABLE].concat();
            put_name("/a/1", &mut expected);
            assert_eq!(*written.lock().unwrap(), expected);
        }
    }

    #[test]
    fn invalid_frame_length_is_refused_before_allocation() {
        let (mut huge, _) = channel(&[0xff, 0xff, 0xff, 0xff, 0x0f], 1);
        assert!(block_on(huge.frame(1 << 20)).is_err());
        let (mut torn, _) = channel(&[100, 1, 2, 3], 1);
        assert_eq!(block_on(torn.frame(200)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let (mut endless, _) = channel(&NOT_AVAILABLE.repeat(100), 1 << 20);
        assert!(block_on(endless.accept(&["/a/1"])).is_err());
        let (mut silent, _) = channel(&[], 1);
        assert_eq!(block_on(silent.accept(&["/a/1"])).unwrap(), None);
    }
}
