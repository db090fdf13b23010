//! A switch between machines: Ethernet frames over Unix datagram sockets, one frame each.
//!
//! Every port has a socket that its machine sends into and knows the socket on which that machine
//! receives. A machine may only send from the hardware address of its port; any other frame, and
//! data that is not a frame, is dropped. A frame for the address of a port is sent there, a
//! multicast frame to all others; a frame for an unknown address is dropped.
//!
//! A link of one port to another may be cut, slow or lossy ([`Quality`]). Frames in flight when the
//! link is cut are lost, too. Frames between two ports are never reordered.
//!
//! Bounds: frames of [`FRAME_BYTES_MAX`]; [`QUEUE_FRAMES_MAX`] and [`QUEUE_BYTES_MAX`] in flight to
//! one port. Beyond these, frames are dropped as by a real switch, which happens when a machine
//! does not read or a link is too slow for its traffic.
//!
//! Must never know: the payload of a frame.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tokio::{
    net::UnixDatagram,
    sync::{mpsc, watch},
    time::Instant,
};

use crate::qemu;

/// Longest frame. Cards send 1514 bytes; more is read so that longer ones are known as such.
pub const FRAME_BYTES_MAX: usize = 64 << 10;
/// Frames on their way to one port: a 100 Mbit/s link of 200 ms has 1700.
pub const QUEUE_FRAMES_MAX: usize = 4096;
/// And their bytes.
pub const QUEUE_BYTES_MAX: usize = 8 << 20;
/// Two addresses and a type.
const HEADER_BYTES: usize = 14;
/// More machines than one host runs.
const PORTS_MAX: usize = 256;
/// After an error of a socket that is not the other side's absence.
const ERROR_PAUSE: Duration = Duration::from_millis(50);

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Hardware(pub [u8; 6]);

impl Hardware {
    /// The address of port `port` on this switch; 52:54:00 is what QEMU uses.
    pub fn of_port(port: usize) -> Self {
        let [high, low] = (port as u16 + 1).to_be_bytes();
        Self([0x52, 0x54, 0, 0, high, low])
    }

    fn is_for_many(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl std::fmt::Display for Hardware {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes: Vec<String> = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        formatter.write_str(&bytes.join(":"))
    }
}

/// A port of the switch, for one machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// The only address its machine may send from.
    pub hardware: Hardware,
    /// The switch's socket.
    pub from_machine: PathBuf,
    /// The machine's socket, on which it receives.
    pub to_machine: PathBuf,
}

/// How a link is, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quality {
    /// No frame passes; those on their way are lost.
    pub cut: bool,
    /// Added to every frame.
    pub latency: Duration,
    /// Share of frames that are lost, 0 to 1.
    pub loss: f64,
}

/// Every link that is not as good as can be: from, to.
pub type Table = BTreeMap<(usize, usize), Quality>;

/// Where a frame from port `from` goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Destination {
    To(usize),
    ToAllOthers,
    Nowhere,
}

fn destination(ports: &[Hardware], from: usize, frame: &[u8]) -> Destination {
    let address = |at: usize| {
        let bytes = frame.get(at..at + 6).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Hardware)
    };
    let (Some(target), Some(source)) = (address(0), address(6)) else {
        return Destination::Nowhere;
    };
    let is_frame = (HEADER_BYTES..=FRAME_BYTES_MAX).contains(&frame.len());
    if !is_frame || ports.get(from) != Some(&source) {
        return Destination::Nowhere;
    }
    if target.is_for_many() {
        return Destination::ToAllOthers;
    }
    match ports.iter().position(|port| *port == target) {
        Some(to) if to != from => Destination::To(to),
        _ => Destination::Nowhere,
    }
}

/// A frame on its way to a port.
struct Frame {
    from: usize,
    due: Instant,
    bytes: Arc<[u8]>,
}

/// The way to one port.
struct Queue {
    frames: mpsc::Sender<Frame>,
    bytes: Arc<AtomicUsize>,
}

impl Queue {
    /// A frame that finds no room is dropped.
    fn push(&self, frame: Frame) {
        let length = frame.bytes.len();
        if self.bytes.fetch_add(length, Ordering::Relaxed) + length > QUEUE_BYTES_MAX
            || self.frames.try_send(frame).is_err()
        {
            self.bytes.fetch_sub(length, Ordering::Relaxed);
        }
    }
}

/// Runs until it is dropped.
///
/// # Errors
///
/// A socket that cannot be made.
pub async fn run(ports: Vec<Port>, table: watch::Receiver<Table>) -> Result<()> {
    ensure!(ports.len() <= PORTS_MAX, "{} ports; a switch has at most {PORTS_MAX}", ports.len());
    let addresses: Arc<[Hardware]> = ports.iter().map(|port| port.hardware).collect();
    let mut tasks = tokio::task::JoinSet::new();
    let mut queues = Vec::new();
    for (index, port) in ports.iter().enumerate() {
        let (frames, receive) = mpsc::channel(QUEUE_FRAMES_MAX);
        let bytes = Arc::new(AtomicUsize::new(0));
        queues.push(Queue { frames, bytes: bytes.clone() });
        tasks.spawn(deliver(index, port.to_machine.clone(), receive, bytes, table.clone()));
    }
    let queues: Arc<[Queue]> = queues.into();
    for (index, port) in ports.iter().enumerate() {
        let socket = listen(&port.from_machine)?;
        tasks.spawn(forward(index, socket, addresses.clone(), queues.clone(), table.clone()));
    }
    // They end only with us.
    while tasks.join_next().await.is_some() {}
    Ok(())
}

fn listen(path: &Path) -> Result<UnixDatagram> {
    let words = || format!("making the switch's socket {}", path.display());
    qemu::fits(path)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(words);
        }
        _ => {}
    }
    UnixDatagram::bind(path).with_context(words)
}

/// Takes what a machine sends, and puts it on its way.
async fn forward(
    from: usize,
    socket: UnixDatagram,
    ports: Arc<[Hardware]>,
    queues: Arc<[Queue]>,
    table: watch::Receiver<Table>,
) {
    let mut random = ChaCha8Rng::seed_from_u64(from as u64);
    let mut buffer = vec![0; FRAME_BYTES_MAX + 1];
    // When the last frame on the way to a port is due: no later one overtakes it.
    let mut earliest = vec![Instant::now(); ports.len()];
    loop {
        let Ok(length) = socket.recv(&mut buffer).await else {
            tokio::time::sleep(ERROR_PAUSE).await;
            continue;
        };
        let frame = &buffer[..length];
        let targets = match destination(&ports, from, frame) {
            Destination::Nowhere => continue,
            Destination::To(to) => to..to + 1,
            Destination::ToAllOthers => 0..ports.len(),
        };
        let bytes: Arc<[u8]> = frame.into();
        let now = Instant::now();
        for to in targets.filter(|to| *to != from) {
            let quality = table.borrow().get(&(from, to)).copied().unwrap_or_default();
            if quality.cut || (quality.loss > 0.0 && random.gen_bool(quality.loss.clamp(0.0, 1.0)))
            {
                continue;
            }
            let due = earliest[to].max(now + quality.latency);
            earliest[to] = due;
            queues[to].push(Frame { from, due, bytes: bytes.clone() });
        }
    }
}

/// Delivers what is on its way to one machine.
async fn deliver(
    to: usize,
    path: PathBuf,
    mut receive: mpsc::Receiver<Frame>,
    bytes: Arc<AtomicUsize>,
    table: watch::Receiver<Table>,
) {
    // By when they are due; the number keeps apart those that are due at the same time.
    let mut waiting: BTreeMap<(Instant, u64), Frame> = BTreeMap::new();
    let mut number = 0_u64;
    let mut socket: Option<UnixDatagram> = None;
    loop {
        let first = waiting.keys().next().map(|(due, _)| *due);
        // As many as there may be in the channel again; what is full stays in the channel.
        let has_room = waiting.len() < QUEUE_FRAMES_MAX;
        let frame = tokio::select! {
            biased;
            () = async { tokio::time::sleep_until(first.unwrap_or_else(Instant::now)).await }, if first.is_some() => {
                waiting.pop_first().map(|(_, frame)| frame)
            }
            frame = receive.recv(), if has_room => {
                let Some(frame) = frame else { return };
                if frame.due <= Instant::now() && waiting.is_empty() {
                    Some(frame)
                } else {
                    number += 1;
                    waiting.insert((frame.due, number), frame);
                    None
                }
            }
        };
        let Some(frame) = frame else { continue };
        let is_cut = table.borrow().get(&(frame.from, to)).is_some_and(|quality| quality.cut);
        if !is_cut {
            send(&mut socket, &path, &frame.bytes).await;
        }
        bytes.fetch_sub(frame.bytes.len(), Ordering::Relaxed);
    }
}

/// Sends a frame to a machine, which may be away: then it is lost. One that is slow is waited for,
/// while the queue takes what comes and drops what is too much.
async fn send(socket: &mut Option<UnixDatagram>, path: &Path, bytes: &[u8]) {
    // The second time over a new connection: the machine may have been restarted.
    for _ in 0..2 {
        if socket.is_none() {
            let made = UnixDatagram::unbound().and_then(|made| made.connect(path).map(|()| made));
            let Ok(made) = made else { return };
            *socket = Some(made);
        }
        let Some(connected) = socket.as_ref() else { return };
        match connected.send(bytes).await {
            Ok(_) => return,
            Err(_) => *socket = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn frame(to: Hardware, from: Hardware, text: &str) -> Vec<u8> {
        [&to.0[..], &from.0[..], &[8, 0], text.as_bytes()].concat()
    }

    // Promise: P25 - A machine sends frames from one hardware address only.
    #[test]
    fn frames_go_where_their_address_is_and_nobody_speaks_for_another() {
        let ports: Vec<Hardware> = (0..3).map(Hardware::of_port).collect();
        assert_eq!(ports[1].to_string(), "52:54:00:00:00:02");
        let all = Hardware([0xff; 6]);
        let stranger = Hardware([0x52, 0x54, 0, 9, 9, 9]);
        for (target, source, expected) in [
            (ports[1], ports[0], Destination::To(1)),
            (all, ports[0], Destination::ToAllOthers),
            (Hardware([1, 0, 0x5e, 0, 0, 1]), ports[0], Destination::ToAllOthers),
            (ports[0], ports[0], Destination::Nowhere),
            (stranger, ports[0], Destination::Nowhere),
            (ports[1], ports[2], Destination::Nowhere),
            (all, stranger, Destination::Nowhere),
        ] {
            assert_eq!(
                destination(&ports, 0, &frame(target, source, "x")),
                expected,
                "{target} {source}"
            );
        }
        for length in [0, 5, 6, 11, 13] {
            assert_eq!(
                destination(&ports, 0, &frame(ports[1], ports[0], "")[..length]),
                Destination::Nowhere,
                "{length}"
            );
        }
        let long = frame(ports[1], ports[0], &"x".repeat(FRAME_BYTES_MAX));
        assert_eq!(destination(&ports, 0, &long), Destination::Nowhere);
        assert_eq!(destination(&ports, 7, &frame(ports[1], ports[0], "x")), Destination::Nowhere);
    }

    struct SwitchFixture {
        folder: tempfile::TempDir,
        table: watch::Sender<Table>,
        machines: Vec<Option<UnixDatagram>>,
    }

    impl SwitchFixture {
        async fn new(count: usize) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = |kind: &str, index: usize| folder.path().join(format!("{kind}{index}"));
            let ports: Vec<Port> = (0..count)
                .map(|index| Port {
                    hardware: Hardware::of_port(index),
                    from_machine: path("s", index),
                    to_machine: path("n", index),
                })
                .collect();
            let (table, receiver) = watch::channel(Table::new());
            let last = ports.last().unwrap().from_machine.clone();
            let machines = ports
                .iter()
                .map(|port| Some(UnixDatagram::bind(&port.to_machine).unwrap()))
                .collect();
            tokio::spawn(run(ports, receiver));
            while !last.exists() {
                tokio::task::yield_now().await;
            }
            Self { folder, table, machines }
        }

        async fn send(&self, from: usize, to: usize, text: &str) {
            let target = if to == usize::MAX { Hardware([0xff; 6]) } else { Hardware::of_port(to) };
            let bytes = frame(target, Hardware::of_port(from), text);
            let socket = self.folder.path().join(format!("s{from}"));
            self.machines[from].as_ref().unwrap().send_to(&bytes, socket).await.unwrap();
        }

        async fn next(&self, at: usize) -> String {
            let mut buffer = vec![0; FRAME_BYTES_MAX];
            let receive = self.machines[at].as_ref().unwrap().recv(&mut buffer);
            let length = tokio::time::timeout(TIMEOUT, receive).await.unwrap().unwrap();
            String::from_utf8_lossy(&buffer[HEADER_BYTES..length]).into_owned()
        }
    }

    #[tokio::test]
    async fn machines_hear_each_other_over_good_links_only_and_may_come_and_go() {
        let mut fixture = SwitchFixture::new(3).await;
        fixture.send(0, 1, "one").await;
        assert_eq!(fixture.next(1).await, "one");
        fixture.send(0, usize::MAX, "all").await;
        assert_eq!((fixture.next(1).await, fixture.next(2).await), ("all".into(), "all".into()));

        // A frame sent over the cut link never arrives; a later one over a good link does.
        let cut = Quality { cut: true, ..Quality::default() };
        fixture.table.send_replace([((0, 1), cut)].into());
        fixture.send(0, 1, "lost").await;
        fixture.send(1, 0, "back").await;
        assert_eq!(fixture.next(0).await, "back", "the other direction is another link");
        fixture.send(0, usize::MAX, "some").await;
        assert_eq!(fixture.next(2).await, "some");
        fixture.table.send_replace(Table::new());
        fixture.send(0, 1, "healed").await;
        assert_eq!(fixture.next(1).await, "healed");

        let slow = Quality { latency: Duration::from_millis(200), ..Quality::default() };
        fixture.table.send_replace([((0, 1), slow)].into());
        let began = Instant::now();
        fixture.send(0, usize::MAX, "slow").await;
        // Once one port has received it, it is in flight to the other.
        assert_eq!(fixture.next(2).await, "slow");
        fixture.table.send_replace(Table::new());
        fixture.send(0, 1, "behind").await;
        assert_eq!(fixture.next(1).await, "slow", "nothing overtakes");
        assert!(began.elapsed() >= Duration::from_millis(200));
        assert_eq!(fixture.next(1).await, "behind");

        // Gone, and back with another socket at the same place.
        fixture.machines[1] = None;
        fixture.send(0, 1, "to nobody").await;
        fixture.send(0, 2, "meanwhile").await;
        assert_eq!(fixture.next(2).await, "meanwhile");
        fs::remove_file(fixture.folder.path().join("n1")).unwrap();
        fixture.machines[1] = Some(UnixDatagram::bind(fixture.folder.path().join("n1")).unwrap());
        // The first may still have met the old one.
        fixture.send(0, 1, "again").await;
        fixture.send(1, 2, "hello").await;
        assert_eq!(fixture.next(1).await, "again");
        assert_eq!(fixture.next(2).await, "hello");
    }

    #[tokio::test]
    async fn a_machine_that_stands_still_holds_up_nobody_and_takes_no_more_than_its_queue() {
        let fixture = SwitchFixture::new(3).await;
        for round in 0..3 * QUEUE_FRAMES_MAX {
            fixture.send(0, 1, "to one that does not listen").await;
            if round % 1000 == 0 {
                fixture.send(0, 2, "through").await;
                assert_eq!(fixture.next(2).await, "through");
            }
        }
        let mut heard = 0;
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        let one = fixture.machines[1].as_ref().unwrap();
        while let Ok(Ok(_)) =
            tokio::time::timeout(Duration::from_millis(500), one.recv(&mut buffer)).await
        {
            heard += 1;
        }
        assert!((1..=2 * QUEUE_FRAMES_MAX + 1000).contains(&heard), "{heard}");
    }
}
