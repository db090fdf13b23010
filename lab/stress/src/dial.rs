//! Connections to the node: TCP or WebSocket, encrypted by noise, multiplexed by yamux.
//!
//! Bounds: a connection is established within [`HANDSHAKE`] or fails; [`STREAMS_MAX`] streams on
//! it. Must never know: the use of the connection.

use std::{io, time::Duration};

use anyhow::{Context, Result, ensure};
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{
        Endpoint,
        muxing::StreamMuxerBox,
        transport::{Boxed, DialOpts, OrTransport, PortUse},
        upgrade::Version,
    },
    dns,
    identity::Keypair,
    multiaddr::Protocol,
    noise, tcp, websocket, yamux,
};

/// Connecting, encrypting and agreeing on a multiplexer take no longer.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Streams of one connection, of both sides.
pub(crate) const STREAMS_MAX: usize = 4096;

fn transport(keys: &Keypair) -> Result<Boxed<(PeerId, StreamMuxerBox)>> {
    let config = tcp::Config::new().nodelay(true);
    let plain = dns::tokio::Transport::system(tcp::tokio::Transport::new(config.clone()))?;
    let below = dns::tokio::Transport::system(tcp::tokio::Transport::new(config))?;
    let web = websocket::Config::new(below);
    let mut muxer = yamux::Config::default();
    muxer.set_max_num_streams(STREAMS_MAX);
    Ok(OrTransport::new(web, plain)
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keys)?)
        .multiplex(muxer)
        .timeout(HANDSHAKE)
        .boxed())
}

/// Connects to `address`. If that names a peer, only that one will do. Errors: no process listens,
/// the handshake fails, another peer answers.
pub(crate) async fn connect(keys: &Keypair, address: &Multiaddr) -> Result<StreamMuxerBox> {
    let mut place = address.clone();
    let wanted = match place.iter().last() {
        Some(Protocol::P2p(peer)) => {
            place.pop();
            Some(peer)
        }
        _ => None,
    };
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let dial = transport(keys)?
        .dial(place, options)
        .map_err(io::Error::other)
        .with_context(|| format!("{address} is no address this driver can dial: use tcp or ws"))?;
    let (peer, muxer) = dial.await.with_context(|| format!("dialling {address}"))?;
    ensure!(wanted.is_none_or(|wanted| wanted == peer), "{address} is now the peer {peer}");
    Ok(muxer)
}
