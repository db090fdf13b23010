//! Bytes of a peer for the relay's multiplexers, which count unread bytes: they accept any input,
//! hold no more than the count allows, and release everything.
//!
//! The first byte chooses: its lowest bit the multiplexer, its next whether the peer closes at the
//! end. The second is the length of the pieces that arrive, in 16 bytes; a bit of the third says
//! whether streams are read in that round of eight.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use accounting::Pool;
use futures::{AsyncRead, AsyncWrite, FutureExt};
use libp2p::core::{muxing::StreamMuxer, upgrade::InboundConnectionUpgrade};

use crate::{
    allocated,
    network::{
        framing::Framing,
        meter::{MeteredMuxer, Meters, metered},
    },
};

/// Bytes that a connection may hold, and that are read of it at once.
const HELD_BYTES: u64 = 512 << 10;
const READ_BYTES: u64 = 64 << 10;
/// Streams that are kept; further ones are dropped, which resets them.
const STREAMS_MAX: usize = 16;
/// Of a multiplexer with all its streams, whatever is sent to it.
const MEMORY_BYTES: usize = 8 << 20;

/// A peer that sends the given bytes and accepts everything.
struct Peer {
    bytes: Vec<u8>,
    sent: usize,
    piece: usize,
    closes: bool,
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let rest = &self.bytes[self.sent..];
        if rest.is_empty() {
            return if self.closes { Poll::Ready(Ok(0)) } else { Poll::Pending };
        }
        let read = rest.len().min(buf.len()).min(self.piece);
        buf[..read].copy_from_slice(&rest[..read]);
        self.sent += read;
        Poll::Ready(Ok(read))
    }
}

impl AsyncWrite for Peer {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls it for `rounds` rounds.
fn drive<M>(mut muxer: MeteredMuxer<M>, pool: &Pool, rounds: usize, reads: u8)
where
    M: StreamMuxer<Substream: AsyncRead + AsyncWrite + Unpin> + Unpin,
{
    let waker = futures::task::noop_waker();
    let cx = &mut Context::from_waker(&waker);
    let mut streams = Vec::new();
    let mut buffer = [0; 1000];
    for round in 0..rounds {
        if let Poll::Ready(Err(_)) = Pin::new(&mut muxer).poll(cx) {
            break;
        }
        match Pin::new(&mut muxer).poll_inbound(cx) {
            Poll::Ready(Ok(stream)) if streams.len() < STREAMS_MAX => streams.push(stream),
            Poll::Ready(Err(_)) => break,
            _ => {}
        }
        if (reads >> (round % 8)) & 1 == 1 {
            streams.retain_mut(|stream| match Pin::new(stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(read)) => read > 0,
                Poll::Ready(Err(_)) => false,
                Poll::Pending => true,
            });
        }
        let used = pool.used_bytes();
        assert!(used <= HELD_BYTES + READ_BYTES, "{used} bytes are held");
    }
    // A peer's end finds everything in whatever state it is.
    let _ = Pin::new(&mut muxer).poll_close(cx);
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let [choice, piece, reads, rest @ ..] = bytes else { return };
    let piece = usize::from(*piece) * 16 + 1;
    let pool = Pool::standalone("unread", 4 << 20);
    let meters =
        Meters::new(pool.clone(), HELD_BYTES, Duration::from_secs(3600), 64, Arc::new(|| true));
    let rounds = rest.len() / piece + rest.len() / 12 + 16;
    let peer = Peer { bytes: rest.to_vec(), sent: 0, piece, closes: choice & 2 != 0 };
    allocated::within(MEMORY_BYTES, || {
        if choice % 2 == 1 {
            let mut config = libp2p_mplex::Config::new();
            config.set_max_num_streams(64).set_max_buffer_size(1024);
            config.set_max_buffer_behaviour(libp2p_mplex::MaxBufferBehaviour::ResetStream);
            let muxer = metered(&meters, Framing::mplex(), peer, |gate| {
                let upgrade = config.upgrade_inbound(gate, "/mplex/6.7.0").now_or_never();
                upgrade.expect("it is ready").expect("it begins")
            });
            drive(muxer, &pool, rounds, *reads);
        } else {
            let mut config = libp2p::yamux::Config::default();
            config.set_max_num_streams(64);
            let muxer = metered(&meters, Framing::yamux(), peer, |gate| {
                let upgrade = config.upgrade_inbound(gate, "/yamux/1.0.0").now_or_never();
                upgrade.expect("it is ready").expect("it begins")
            });
            drive(muxer, &pool, rounds, *reads);
        }
    });
    assert_eq!(pool.used_bytes(), 0, "everything is released");
}
