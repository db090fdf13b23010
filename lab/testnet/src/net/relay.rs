//! The relay: one small process between the nodes of a net, through which every link goes, and
//! which cuts and slows links without any privilege.
//!
//! A node dials another one at an address of the relay that represents this link. Bytes in the
//! direction of the dial follow the state of that link, bytes back follow the state of the link in
//! the other direction.
//!
//! Effect of faults on TCP: a *cut* link carries neither bytes nor the end of a connection, and
//! nothing is lost: data arrives when the link heals, as after a retransmission. *Latency* is added
//! to every piece. A *lost* packet appears as in TCP: as the delay of a retransmission for it and
//! for everything after it. Two differences from a real network: a dial across a cut link is
//! accepted and then gets no data, and TCP's growing pauses between retransmissions are not
//! simulated, so links recover at once.
//!
//! Between machines there is a switch instead ([`machines::switch`]): the same process with the
//! same orders, which carries frames and not connections.
//!
//! Bounds: [`CONNECTIONS_MAX`] connections per link, [`PIECES_MAX`] pieces of [`PIECE_BYTES`] in
//! flight per direction of a connection; beyond that, the relay stops reading, and the sender's own
//! TCP waits.

use std::{collections::BTreeMap, fs, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    signal::unix::{SignalKind, signal},
    sync::{Semaphore, mpsc, watch},
    time::Instant,
};

use machines::switch;

use super::{
    links::{Link, Quality},
    machine,
    state::{Net, NetFolder, Network},
};

/// Connections per link; two nodes need one or two.
const CONNECTIONS_MAX: usize = 32;
/// Bytes read at once.
const PIECE_BYTES: usize = 16 << 10;
/// On their way in one direction of a connection: 2 MiB.
const PIECES_MAX: usize = 128;
/// Bytes of one packet of a network, to compute losses.
const PACKET_BYTES: usize = 1400;
/// The least pause before TCP sends something again.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// A dial of a node that is not there.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Orders for the relay: `links.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// Counts up; `relay.json` has the one applied last.
    pub(crate) generation: u64,
    links: Vec<Order>,
    /// With machines: the ports of the switch.
    #[serde(default)]
    ports: Vec<switch::Port>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    link: Link,
    /// Where the one node dials.
    listen: SocketAddr,
    /// Where the other listens.
    forward: SocketAddr,
    cut: bool,
    quality: Quality,
}

impl Orders {
    pub(crate) fn for_net(net: &Net) -> Result<Self> {
        let indices = 0..net.nodes.len();
        let links = indices
            .clone()
            .flat_map(|from| indices.clone().map(move |to| (from, to)))
            .filter(|(from, to)| from != to)
            .map(|link| Order {
                link,
                listen: net.dialled(link),
                forward: net.nodes[link.1].p2p,
                cut: net.links.is_cut(link),
                quality: net.links.quality(link),
            })
            .collect();
        let ports = if net.network == Network::Machines { machine::ports(net)? } else { vec![] };
        Ok(Self { generation: net.generation, links, ports })
    }

    /// Treatment of frames by the switch.
    fn table(&self) -> switch::Table {
        let quality = |order: &Order| switch::Quality {
            cut: order.cut,
            latency: Duration::from_micros(order.quality.latency_micros),
            loss: order.quality.loss,
        };
        let links = self.links.iter().map(|order| (order.link, quality(order)));
        links.filter(|(_, quality)| *quality != switch::Quality::default()).collect()
    }
}

/// The state of one directed link, seen by every connection that uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct State {
    cut: bool,
    quality: Quality,
}

type States = BTreeMap<Link, watch::Sender<State>>;

/// Runs until SIGTERM; SIGHUP makes it read its orders again.
pub(crate) async fn run(place: NetFolder) -> Result<()> {
    let path = place.file("links.json");
    let read = || -> Result<Orders> {
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        Ok(serde_json::from_slice(&text)?)
    };
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut orders = read()?;
    let states: Arc<States> = Arc::new(
        orders.links.iter().map(|order| (order.link, watch::channel(State::default()).0)).collect(),
    );
    let (table_tx, table_rx) = watch::channel(switch::Table::new());
    let mut switch = tokio::spawn(switch::run(orders.ports.clone(), table_rx));
    let is_switch = !orders.ports.is_empty();
    for order in orders.links.iter().filter(|_| !is_switch) {
        let listener = TcpListener::bind(order.listen)
            .await
            .with_context(|| format!("link {:?}: listening at {}", order.link, order.listen))?;
        tokio::spawn(serve(listener, order.clone(), states.clone()));
    }
    loop {
        for order in &orders.links {
            if let Some(state) = states.get(&order.link) {
                state.send_replace(State { cut: order.cut, quality: order.quality });
            }
        }
        table_tx.send_replace(orders.table());
        acknowledge(&place, orders.generation)?;
        tokio::select! {
            _ = hangup.recv() => match read() {
                Ok(new) => orders = new,
                // A file that cannot be read changes nothing; its writer gets no acknowledgement
                // and reports that.
                Err(error) => eprintln!("relay: {error:#}"),
            },
            ended = &mut switch, if is_switch => return ended.context("the switch")?,
            _ = terminate.recv() => return Ok(()),
        }
    }
}

/// Names the orders last applied, for the command that waits for them.
fn acknowledge(place: &NetFolder, generation: u64) -> Result<()> {
    place.write("relay.json", json!({"generation": generation}).to_string().as_bytes())
}

/// Which orders the relay followed last.
pub(crate) fn applied_generation(place: &NetFolder) -> Option<u64> {
    let text = fs::read(place.file("relay.json")).ok()?;
    serde_json::from_slice::<Value>(&text).ok()?.get("generation")?.as_u64()
}

/// Accepts what is dialled on one link.
async fn serve(listener: TcpListener, order: Order, states: Arc<States>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut count = 0_u64;
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((near, _)) = listener.accept().await else {
            // Out of descriptors, or the peer went: neither is for ever.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        count += 1;
        let (states, order, number) = (states.clone(), order.clone(), count);
        tokio::spawn(async move {
            connection(near, &order, &states, number).await;
            drop(permit);
        });
    }
}

/// One connection: dialled over `order.link`, bytes back over its opposite.
async fn connection(near: TcpStream, order: &Order, states: &States, number: u64) {
    let back = (order.link.1, order.link.0);
    let (Some(there), Some(back)) = (states.get(&order.link), states.get(&back)) else { return };
    let (mut there, back) = (there.subscribe(), back.subscribe());
    // A dial crosses the link like everything else.
    if until_open(&mut there).await.is_none() {
        return;
    }
    let Ok(Ok(far)) = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(order.forward)).await
    else {
        return;
    };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let seed = ((order.link.0 as u64) << 48) | ((order.link.1 as u64) << 32) | number;
    // Each direction ends by itself, as each direction of a TCP connection may.
    tokio::join!(
        direction(near_read, far_write, there, seed << 1),
        direction(far_read, near_write, back, seed << 1 | 1)
    );
}

/// A piece on its way; none is the end of the stream.
struct Piece {
    due: Instant,
    bytes: Vec<u8>,
}

async fn direction(
    mut reader: OwnedReadHalf,
    mut writer: OwnedWriteHalf,
    state: watch::Receiver<State>,
    seed: u64,
) {
    let (send, mut receive) = mpsc::channel::<Piece>(PIECES_MAX);
    let mut at_sender = state.clone();
    let reading = async move {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut earliest = Instant::now();
        loop {
            let mut bytes = vec![0; PIECE_BYTES];
            let length = reader.read(&mut bytes).await.unwrap_or(0);
            bytes.truncate(length);
            bytes.shrink_to_fit();
            // Data sent into a cut link waits on the sender's side.
            if until_open(&mut at_sender).await.is_none() {
                return;
            }
            let quality = at_sender.borrow().quality;
            // Nothing overtakes: a piece is never due before the one ahead of it.
            earliest = earliest.max(Instant::now() + delay(quality, length, &mut random));
            if send.send(Piece { due: earliest, bytes }).await.is_err() || length == 0 {
                return;
            }
        }
    };
    let mut at_receiver = state;
    let writing = async move {
        while let Some(piece) = receive.recv().await {
            tokio::time::sleep_until(piece.due).await;
            if until_open(&mut at_receiver).await.is_none() {
                return;
            }
            if piece.bytes.is_empty() || writer.write_all(&piece.bytes).await.is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
    };
    tokio::join!(reading, writing);
}

/// How much later a piece arrives.
fn delay(quality: Quality, length: usize, random: &mut ChaCha8Rng) -> Duration {
    let latency = Duration::from_micros(quality.latency_micros);
    let packets = length.div_ceil(PACKET_BYTES).max(1);
    let lost = quality.loss > 0.0 && (0..packets).any(|_| random.gen_bool(quality.loss));
    // Lost once; that a retransmission is lost again is rare at the losses one asks for.
    if lost { latency + RETRANSMISSION.max(latency * 2) } else { latency }
}

/// Waits until the link is not cut; `None` when the relay ends.
async fn until_open(state: &mut watch::Receiver<State>) -> Option<()> {
    state.wait_for(|state| !state.cut).await.ok().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_latency_and_now_and_then_a_retransmission() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let quality = Quality { latency_micros: 50_000, loss: 0.1 };
        let delays: Vec<u128> =
            (0..1000).map(|_| delay(quality, 100, &mut random).as_millis()).collect();
        let lost = delays.iter().filter(|millis| **millis == 250).count();
        assert_eq!(delays.iter().filter(|millis| **millis == 50).count() + lost, 1000);
        assert!((50..200).contains(&lost), "{lost} of 1000 at 10 %");
        let whole = (0..1000)
            .filter(|_| delay(quality, PIECE_BYTES, &mut random).as_millis() == 250)
            .count();
        assert!(whole > 600, "a piece of twelve packets is hit more often: {whole}");
        assert_eq!(delay(Quality::default(), PIECE_BYTES, &mut random), Duration::ZERO);
    }
}
