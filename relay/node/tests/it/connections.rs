//! Connections that are of no use to anybody, many of them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use futures::{StreamExt, stream};
use libp2p::{Multiaddr, multiaddr::Protocol};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testing::until_async;
use tokio::net::{TcpSocket, TcpStream};

use crate::{
    harness::Relay,
    peer::{Client, message, serves},
    raw::{Multiplexer, Raw},
};

const TOPIC: &str = "/test/1/connections/proto";
const IDLE: u32 = 5_000;

/// This process may have that many sockets open.
fn allow_descriptors(count: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= count) {
        return;
    }
    assert!(maximum.is_none_or(|most| most >= count), "{count} files must be allowed: ulimit -Hn");
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).unwrap();
}

fn socket_address(address: &str) -> SocketAddr {
    let address: Multiaddr = address.parse().unwrap();
    let mut parts = address.iter();
    match (parts.next(), parts.next()) {
        (Some(Protocol::Ip4(ip)), Some(Protocol::Tcp(port))) => (ip, port).into(),
        other => panic!("{other:?}"),
    }
}

/// A connection from an address of its own, on which nothing is ever sent.
async fn silent(to: SocketAddr, number: u32) -> Option<TcpStream> {
    let [_, a, b, c] = number.to_be_bytes();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, a + 1, b, c.max(1)), 0).into()).unwrap();
    tokio::time::timeout(Duration::from_secs(5), socket.connect(to)).await.ok()?.ok()
}

// Promise: P24 - 5,000 idle connections keep out neither known clients nor newcomers.
#[tokio::test]
async fn five_thousand_idle_connections_keep_nobody_out() {
    allow_descriptors(20_000);
    let relay = Relay::start(&[]);
    let memory = relay.watch();
    let address = relay.address(false);
    let mut known = Client::connect(address).await;
    assert_eq!(known.push(&message(TOPIC, b"before")).await.unwrap().status.code(), 200);
    // More than there are places: they shake hands, and then send nothing.
    let mut idle = Vec::new();
    for _ in 0..120 {
        idle.extend(Raw::try_connect(address, Multiplexer::Yamux, &[]).await);
    }
    let to = socket_address(address);
    let silent: Vec<TcpStream> = stream::iter(0..IDLE)
        .map(|number| silent(to, number))
        .buffer_unordered(64)
        .filter_map(std::future::ready)
        .collect()
        .await;
    assert!(silent.len() > 4_000, "{} connected", silent.len());
    // Connections in use stay, and newcomers get in while all of them are there.
    assert_eq!(known.push(&message(TOPIC, b"meanwhile")).await.unwrap().status.code(), 200);
    until_async("a newcomer is served", async || {
        let Ok(mut new) = Client::try_connect(address).await else { return false };
        new.push(&message(TOPIC, b"a newcomer")).await.is_some()
    })
    .await;
    assert!(relay.metric("thimble_relay_connections") <= 96);
    drop((idle, silent));
    serves(address, TOPIC).await;
    assert_eq!(known.push(&message(TOPIC, b"after")).await.unwrap().status.code(), 200);
    memory.stayed_inside("5,000 idle connections");
}
