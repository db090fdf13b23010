//! How bytes get from here to there: TCP, WebSocket and secure WebSocket, encrypted by noise,
//! multiplexed by yamux or mplex (stock clients offer one or the other).

use std::{array, io, time::Duration};

use futures::{AsyncRead, AsyncWrite, future};
use libp2p::{
    PeerId, Transport,
    core::{
        muxing::StreamMuxerBox,
        transport::{Boxed, OrTransport},
        upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo, Version},
    },
    dns, identity, noise, tcp, websocket, yamux,
};

use rustix::net::sockopt;

use super::{
    framing::Framing,
    meter::{Gate, MeteredMuxer, Meters, metered},
};

const YAMUX: &str = "/yamux/1.0.0";
const MPLEX: &str = "/mplex/6.7.0";
/// Frames of a stream that mplex buffers before it resets the stream; bytes are bounded by the
/// gate.
const MPLEX_FRAMES: usize = 1024;
/// A multiplexer that meets its own limit closes the whole connection: streams are refused one by
/// one, well before.
const STREAMS_FACTOR: usize = 4;
const WEBSOCKET_BYTES: usize = 512 << 10;

/// Certificate and key of the secure WebSocket, as DER.
pub(crate) struct Tls {
    pub(crate) key: Vec<u8>,
    pub(crate) chain: Vec<Vec<u8>>,
}

/// The transport. Sockets have buffers of `socket_buffer` bytes in each direction. Connecting,
/// encrypting and agreeing on a multiplexer take no longer than `handshake`.
pub(crate) fn transport(
    keys: &identity::Keypair,
    streams: usize,
    socket_buffer: usize,
    handshake: Duration,
    meters: &Meters,
    tls: Option<Tls>,
) -> anyhow::Result<Boxed<(PeerId, StreamMuxerBox)>> {
    let tcp_config = tcp::Config::new().nodelay(true);
    let sockets = || {
        let sockets = tcp::tokio::Transport::new(tcp_config.clone());
        sockets.map(move |socket, _| bounded(socket, socket_buffer))
    };
    let plain = dns::tokio::Transport::system(sockets())?;
    let below = dns::tokio::Transport::system(sockets())?;
    let mut web = websocket::Config::new(below);
    web.set_max_data_size(WEBSOCKET_BYTES);
    if let Some(Tls { key, chain }) = tls {
        let chain: Vec<_> = chain.into_iter().map(websocket::tls::Certificate::new).collect();
        web.set_tls_config(websocket::tls::Config::new(
            websocket::tls::PrivateKey::new(key),
            chain,
        )?);
    }
    let multiplexers = Multiplexers::new(streams, meters.clone());
    Ok(OrTransport::new(web, plain)
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keys)?)
        .multiplex(multiplexers)
        .timeout(handshake)
        .boxed())
}

/// A socket for which the kernel holds at most `bytes` (and as much again for its own structures),
/// even if the peer does not read.
fn bounded(socket: tcp::tokio::TcpStream, bytes: usize) -> tcp::tokio::TcpStream {
    let set = sockopt::set_socket_recv_buffer_size(&socket.0, bytes)
        .and_then(|()| sockopt::set_socket_send_buffer_size(&socket.0, bytes));
    if let Err(error) = set {
        // The system's own sizes then bound it.
        tracing::debug!(%error, bytes, "the kernel takes no buffer sizes for a socket");
    }
    socket
}

#[derive(Clone)]
struct Multiplexers {
    yamux: yamux::Config,
    mplex: libp2p_mplex::Config,
    meters: Meters,
}

impl Multiplexers {
    fn new(streams: usize, meters: Meters) -> Self {
        let streams = streams.saturating_mul(STREAMS_FACTOR).min(4096);
        let mut yamux = yamux::Config::default();
        yamux.set_max_num_streams(streams);
        let mut mplex = libp2p_mplex::Config::new();
        mplex.set_max_num_streams(streams).set_max_buffer_size(MPLEX_FRAMES);
        mplex.set_max_buffer_behaviour(libp2p_mplex::MaxBufferBehaviour::ResetStream);
        mplex.set_split_send_size(16 << 10);
        Self { yamux, mplex, meters }
    }
}

impl UpgradeInfo for Multiplexers {
    type Info = &'static str;
    type InfoIter = array::IntoIter<&'static str, 2>;

    fn protocol_info(&self) -> Self::InfoIter {
        [YAMUX, MPLEX].into_iter()
    }
}

type Either<C> = future::Either<yamux::Muxer<Gate<C>>, libp2p_mplex::Multiplex<Gate<C>>>;
type Upgrading<C> = future::Ready<io::Result<MeteredMuxer<Either<C>>>>;

impl<C> InboundConnectionUpgrade<C> for Multiplexers
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = MeteredMuxer<Either<C>>;
    type Error = io::Error;
    type Future = Upgrading<C>;

    fn upgrade_inbound(self, socket: C, name: Self::Info) -> Self::Future {
        let Self { yamux, mplex, meters } = self;
        let muxer = metered(&meters, framing(name), socket, |gate| {
            // Both upgrades are ready at once.
            if name == MPLEX {
                mplex.upgrade_inbound(gate, MPLEX).into_inner().map(future::Either::Right)
            } else {
                yamux.upgrade_inbound(gate, YAMUX).into_inner().map(future::Either::Left)
            }
        });
        future::ready(muxer.transpose())
    }
}

impl<C> OutboundConnectionUpgrade<C> for Multiplexers
where
    C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    type Output = MeteredMuxer<Either<C>>;
    type Error = io::Error;
    type Future = Upgrading<C>;

    fn upgrade_outbound(self, socket: C, name: Self::Info) -> Self::Future {
        let Self { yamux, mplex, meters } = self;
        let muxer = metered(&meters, framing(name), socket, |gate| {
            if name == MPLEX {
                mplex.upgrade_outbound(gate, MPLEX).into_inner().map(future::Either::Right)
            } else {
                yamux.upgrade_outbound(gate, YAMUX).into_inner().map(future::Either::Left)
            }
        });
        future::ready(muxer.transpose())
    }
}

fn framing(name: &str) -> Framing {
    if name == MPLEX { Framing::mplex() } else { Framing::yamux() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_holds_what_it_is_told_for_a_socket() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        for bytes in [32 << 10, 64 << 10] {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let socket = bounded(tcp::tokio::TcpStream(stream), bytes);
            // The kernel doubles the size, for its own structures.
            assert_eq!(sockopt::socket_send_buffer_size(&socket.0).unwrap(), 2 * bytes);
            assert_eq!(sockopt::socket_recv_buffer_size(&socket.0).unwrap(), 2 * bytes);
        }
    }
}
