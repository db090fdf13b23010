//! The wire between the pool and a worker: strictly one frame out and one frame back, through
//! memory that both have mapped ([`ring`]), and a socket for descriptors.
//!
//! A message costs no system call but those that wake and wait, where a side has nothing to do: the
//! body, a postcard value, is written where the other side reads it. Descriptors of a frame travel
//! as `SCM_RIGHTS` with one byte, before the frame is published; only the pool sends them, and the
//! worker cannot send anything.
//!
//! # Waiting
//!
//! A side that waits sleeps on a futex. The socket also shows the pool that a worker has ended:
//! it looks between two naps, which are [`NAP_FIRST`] at first and [`NAP_MAX`] at last, so long
//! messages cost next to nothing and a death is noticed soon. A worker ends with its pool: the
//! kernel kills it. Where both are on one processor ([`accounting::processor`]) one of them always
//! waits, and sleeping is a switch of context. Where they are not, a side first looks at the cursor
//! for [`SPIN`], as long as its last wait was shorter than that.
//!
//! # Bounds
//!
//! The size of the rings is the limit `sandbox.ring_bytes`; a longer frame goes in pieces
//! ([`frame`]). The receiver sets the maximum length of a body, and no frame carries more than
//! [`DESCRIPTORS_MAX`] descriptors. A frame beyond either is an error that ends the connection. A
//! time limit covers the whole of a frame, however many pieces it has. The scratch buffer is
//! released after a large frame.
//!
//! This module knows nothing of the contents of frames.

mod frame;
mod ring;

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
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

pub(crate) use frame::{Incoming, Outgoing, Step};
pub(crate) use ring::{Cursor, OwnRing, PeerRing, RING_BYTES_MIN};

/// Descriptors one frame may carry: as many as the kernel allows.
pub(crate) const DESCRIPTORS_MAX: usize = 253;

/// Most that the buffer of received bodies keeps between frames.
const SCRATCH_BYTES_MAX: usize = 256 * 1024;

/// Time between two looks at whether the other side is alive: at first, and doubled until.
const NAP_FIRST: Duration = Duration::from_millis(1);
const NAP_MAX: Duration = Duration::from_millis(32);

/// How long a side looks for the other's answer before it sleeps, where the two are on different
/// processors: less than it costs to wake a processor that went idle.
const SPIN: Duration = Duration::from_micros(20);
/// Looks between two looks at the clock.
const LOOKS: u32 = 16;

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

/// Which end of the wire it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The pool's, which says whether the two are on different processors.
    Pool {
        apart: bool,
    },
    Worker,
}

/// One end of the wire.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UnixStream,
    own: OwnRing,
    peer: PeerRing,
    end: End,
    /// Between frames empty, with the room of an earlier one.
    scratch: Vec<u8>,
    timeout: Option<Duration>,
    /// Whether the last wait was so short that spinning would have been enough.
    spin_pays: bool,
}

impl Channel {
    /// The pool's end of a wire: makes rings of `ring_bytes` each and sends them over `socket`,
    /// which [`Self::accept`] takes them from.
    pub(crate) fn open(socket: UnixStream, ring_bytes: usize) -> Result<Self, IpcError> {
        let (ours, theirs) = (ring::create(ring_bytes)?, ring::create(ring_bytes)?);
        let own = OwnRing::map(&ours, ring_bytes)?;
        ring::seal(&ours, true)?;
        ring::seal(&theirs, false)?;
        let peer = PeerRing::map(&theirs, ring_bytes)?;
        let bytes = (ring_bytes as u64).to_le_bytes();
        send_descriptors(&socket, &bytes, &[ours.as_fd(), theirs.as_fd()])?;
        // Nothing is read from it: what a worker sends would only lie in the kernel's memory.
        socket.shutdown(Shutdown::Read)?;
        Ok(Self::new(socket, own, peer, End::Pool { apart: false }))
    }

    /// The worker's end of a wire that [`Self::open`] made.
    pub(crate) fn accept(socket: UnixStream) -> Result<Self, IpcError> {
        let mut bytes = [0; size_of::<u64>()];
        let mut files = receive_descriptors(&socket, &mut bytes)?.into_iter();
        let (Some(theirs), Some(ours), None) = (files.next(), files.next(), files.next()) else {
            return Err(IpcError::Malformed("another number of rings than two"));
        };
        let ring_bytes = usize::try_from(u64::from_le_bytes(bytes)).map_err(io::Error::other)?;
        let own = OwnRing::map(&ours, ring_bytes)?;
        let peer = PeerRing::map(&theirs, ring_bytes)?;
        Ok(Self::new(socket, own, peer, End::Worker))
    }

    /// Both ends, the pool's first.
    pub(crate) fn pair(ring_bytes: usize) -> Result<(Self, Self), IpcError> {
        let (ours, theirs) = UnixStream::pair()?;
        Ok((Self::open(ours, ring_bytes)?, Self::accept(theirs)?))
    }

    fn new(socket: UnixStream, own: OwnRing, peer: PeerRing, end: End) -> Self {
        let scratch = Vec::new();
        Self { socket, own, peer, end, scratch, timeout: None, spin_pays: false }
    }

    /// How long [`Self::send`] and [`Self::receive`] may take; `None` waits for ever, also for a
    /// side that has ended.
    pub(crate) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// The pool knows whether the two ends run on different processors from now on.
    pub(crate) fn set_apart(&mut self, apart: bool) {
        self.end = End::Pool { apart };
        self.own.set_apart(apart);
    }

    /// The two rings, for a peer that writes what it likes.
    pub(crate) fn rings(&mut self) -> (&mut OwnRing, &PeerRing) {
        (&mut self.own, &self.peer)
    }

    pub(crate) fn send<T: Serialize>(
        &mut self,
        message: &T,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), IpcError> {
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(IpcError::TooManyDescriptors { descriptors: descriptors.len() });
        }
        if !descriptors.is_empty() {
            send_descriptors(&self.socket, &[0], descriptors)?;
        }
        let in_place =
            frame::write_in_place(&mut self.own, &self.peer, descriptors.len(), |room| {
                postcard::to_slice(message, room).map(|body| body.len())
            })?;
        if in_place {
            return Ok(());
        }
        let deadline = self.deadline();
        let encoded = postcard::to_extend(message, vec![0; frame::HEADER_BYTES])?;
        let mut outgoing = Outgoing::new(&self.own, encoded, descriptors.len())?;
        while let Step::Wait(seen) = outgoing.step(&mut self.own, &self.peer)? {
            self.wait(Cursor::Taken, seen, deadline)?;
        }
        Ok(())
    }

    /// Receives one frame whose body is at most `bytes_max` long.
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
    ) -> Result<(T, Vec<OwnedFd>), IpcError> {
        let deadline = self.deadline();
        let scratch = std::mem::take(&mut self.scratch);
        let mut incoming = Incoming::new(&self.own, scratch, bytes_max);
        while let Step::Wait(seen) = incoming.step(&mut self.own, &self.peer)? {
            self.wait(Cursor::Written, seen, deadline)?;
        }
        let (body, announced) = incoming.finish();
        let descriptors = self.take_descriptors(announced)?;
        let message = postcard::from_bytes(&body);
        if body.capacity() <= SCRATCH_BYTES_MAX {
            self.scratch = body;
        }
        Ok((message?, descriptors))
    }

    fn take_descriptors(&self, announced: usize) -> Result<Vec<OwnedFd>, IpcError> {
        if announced == 0 {
            return Ok(Vec::new());
        }
        if self.end != End::Worker {
            return Err(IpcError::Malformed("a report with descriptors"));
        }
        let descriptors = receive_descriptors(&self.socket, &mut [0])?;
        if descriptors.len() != announced {
            return Err(IpcError::Malformed("another number of descriptors than announced"));
        }
        Ok(descriptors)
    }

    fn deadline(&self) -> Option<Instant> {
        self.timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }

    fn is_apart(&self) -> bool {
        match self.end {
            End::Pool { apart } => apart,
            End::Worker => self.peer.says_apart(),
        }
    }

    /// Waits until the other side's `cursor` is not `seen`. It may change for no reason.
    fn wait(
        &mut self,
        cursor: Cursor,
        seen: u32,
        deadline: Option<Instant>,
    ) -> Result<(), IpcError> {
        if !self.is_apart() {
            return self.sleep(cursor, seen, deadline);
        }
        let began = Instant::now();
        if self.spin_pays && self.spin(cursor, seen, began + SPIN) {
            // One that changes for ever is no progress.
            return self.check_deadline(deadline);
        }
        let slept = self.sleep(cursor, seen, deadline);
        self.spin_pays = began.elapsed() < SPIN;
        slept
    }

    /// Looks at the cursor until then. Returns whether it changed.
    fn spin(&self, cursor: Cursor, seen: u32, until: Instant) -> bool {
        loop {
            for _ in 0..LOOKS {
                if self.peer.position(cursor) != seen {
                    return true;
                }
                std::hint::spin_loop();
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    fn sleep(&self, cursor: Cursor, seen: u32, deadline: Option<Instant>) -> Result<(), IpcError> {
        let mut nap = NAP_FIRST;
        loop {
            self.check_deadline(deadline)?;
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()).min(nap));
            let over = self.peer.sleep(&self.own, cursor, seen, left)?;
            if self.peer.position(cursor) != seen {
                return Ok(());
            }
            if over && self.is_closed() {
                // Frames that it wrote before it ended count.
                let changed = self.peer.position(cursor) != seen;
                return if changed { Ok(()) } else { Err(IpcError::Closed) };
            }
            nap = nap.saturating_mul(2).min(NAP_MAX);
        }
    }

    fn check_deadline(&self, deadline: Option<Instant>) -> Result<(), IpcError> {
        match deadline {
            Some(at) if at <= Instant::now() => {
                Err(IpcError::TimedOut(self.timeout.unwrap_or_default()))
            }
            _ => Ok(()),
        }
    }

    /// Whether the other side has closed its end, as a process does that ends.
    fn is_closed(&self) -> bool {
        // Reported without being asked for: nothing else is.
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut socket, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// Sends descriptors with `bytes`, which are few. One that does not take them has all the room that
/// the kernel gives filled: it is refused, not waited for.
fn send_descriptors(
    socket: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), IpcError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(IpcError::TooManyDescriptors { descriptors: descriptors.len() });
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(sent) if sent == bytes.len() => return Ok(()),
            Ok(_) => return Err(IpcError::Malformed("a part of a few bytes was sent")),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(closed_or(error.into())),
        }
    }
}

/// Receives the descriptors that were sent with as many bytes as `bytes` has, which are there.
fn receive_descriptors(socket: &UnixStream, bytes: &mut [u8]) -> Result<Vec<OwnedFd>, IpcError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let wanted = bytes.len();
    let mut into = [IoSliceMut::new(bytes)];
    let received = loop {
        match recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(closed_or(error.into())),
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(IpcError::TooManyDescriptors { descriptors: DESCRIPTORS_MAX + 1 });
    }
    match received.bytes {
        0 => Err(IpcError::Closed),
        bytes if bytes == wanted => Ok(descriptors),
        _ => Err(IpcError::Malformed("descriptors with another number of bytes")),
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
    use std::io::{Read, Seek, Write};

    use proptest::prelude::*;

    use super::*;

    const RING_BYTES: usize = 64 << 10;
    const PATIENCE: Duration = Duration::from_secs(60);

    fn pair() -> (Channel, Channel) {
        let (mut pool, worker) = Channel::pair(RING_BYTES).unwrap();
        pool.set_timeout(Some(PATIENCE));
        (pool, worker)
    }

    #[test]
    fn frames_carry_bytes_and_descriptors() {
        let (mut pool, mut worker) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"kept").unwrap();
        for round in 0..3_u8 {
            pool.send(&vec![round; 100], &[file.as_fd(), file.as_fd()]).unwrap();
            let (body, descriptors): (Vec<u8>, _) = worker.receive(1000).unwrap();
            assert_eq!(body, vec![round; 100]);
            assert_eq!(descriptors.len(), 2);
            let mut copy = std::fs::File::from(descriptors.into_iter().next().unwrap());
            copy.rewind().unwrap();
            let mut text = String::new();
            copy.read_to_string(&mut text).unwrap();
            assert_eq!(text, "kept");
            worker.send(&round, &[]).unwrap();
            assert_eq!(pool.receive::<u8>(10).unwrap().0, round);
        }
    }

    #[test]
    fn frames_longer_than_the_ring_pass_in_pieces_and_longer_ones_than_allowed_are_refused() {
        for apart in [false, true] {
            let (mut pool, mut worker) = pair();
            pool.set_apart(apart);
            let body: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
            let echo = std::thread::spawn(move || {
                let (received, _): (Vec<u8>, _) = worker.receive(4_000_000).unwrap();
                worker.send(&received, &[]).unwrap();
                // The pool ends the connection meanwhile; a worker would be killed with it.
                worker.set_timeout(Some(PATIENCE));
                let sent = worker.send(&received, &[]);
                assert!(matches!(sent, Err(IpcError::Closed)), "{sent:?}");
            });
            pool.send(&body, &[]).unwrap();
            let (received, _): (Vec<u8>, _) = pool.receive(4_000_000).unwrap();
            assert!(received == body);
            assert!(matches!(
                pool.receive::<Vec<u8>>(2_000_000),
                Err(IpcError::TooLong { bytes_max: 2_000_000, .. })
            ));
            drop(pool);
            echo.join().unwrap();
        }
    }

    #[test]
    fn each_side_wakes_the_other_and_waits_for_it() {
        for apart in [false, true] {
            let (mut pool, mut worker) = pair();
            pool.set_apart(apart);
            let echo = std::thread::spawn(move || {
                for _ in 0..2_000 {
                    let (number, _): (u64, _) = worker.receive(16).unwrap();
                    worker.send(&(number + 1), &[]).unwrap();
                }
            });
            for number in 0..2_000_u64 {
                pool.send(&number, &[]).unwrap();
                assert_eq!(pool.receive::<u64>(16).unwrap().0, number + 1);
            }
            echo.join().unwrap();
        }
    }

    #[test]
    fn channel_distinguishes_a_timeout_from_a_closed_peer() {
        let (mut pool, worker) = pair();
        pool.set_timeout(Some(Duration::from_millis(10)));
        assert!(matches!(pool.receive::<u8>(10), Err(IpcError::TimedOut(_))));
        // More than the ring takes, and no reader.
        assert!(matches!(pool.send(&vec![0_u8; RING_BYTES], &[]), Err(IpcError::TimedOut(_))));
        drop(worker);
        let (mut pool, worker) = pair();
        drop(worker);
        assert!(matches!(pool.receive::<u8>(10), Err(IpcError::Closed)));
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(pool.send(&1_u8, &[file.as_fd()]), Err(IpcError::Closed)));
    }

    #[test]
    fn the_last_frame_of_a_side_that_ended_is_received() {
        let (mut pool, mut worker) = pair();
        worker.send(&7_u8, &[]).unwrap();
        drop(worker);
        assert_eq!(pool.receive::<u8>(10).unwrap().0, 7);
        assert!(matches!(pool.receive::<u8>(10), Err(IpcError::Closed)));
    }

    #[test]
    fn descriptors_are_refused_where_too_many_or_sent_by_a_worker() {
        let (mut pool, mut worker) = pair();
        let file = tempfile::tempfile().unwrap();
        let many = vec![file.as_fd(); DESCRIPTORS_MAX + 1];
        assert!(matches!(pool.send(&0_u8, &many), Err(IpcError::TooManyDescriptors { .. })));
        assert!(matches!(worker.send(&0_u8, &[file.as_fd()]), Err(IpcError::Closed)));
        // Announced, and not sent.
        let frame = [&1_u32.to_le_bytes()[..], &1_u32.to_le_bytes(), &[0]].concat();
        let (own, peer) = worker.rings();
        own.write(0, &frame);
        own.publish(Cursor::Written, frame.len() as u32, peer);
        assert!(matches!(pool.receive::<u8>(10), Err(IpcError::Malformed(_))));
    }

    #[test]
    fn descriptors_that_nobody_takes_are_refused_and_not_waited_for() {
        let (mut pool, mut worker) = pair();
        let file = tempfile::tempfile().unwrap();
        let mut sent = 0_u32;
        let refused = loop {
            if let Err(error) = pool.send(&0_u8, &[file.as_fd()]) {
                break error;
            }
            sent += 1;
            // A worker that takes the frame, and leaves the descriptors where they are.
            let (own, peer) = worker.rings();
            own.publish(Cursor::Taken, peer.position(Cursor::Written), peer);
            assert!(sent < 100_000, "{sent} are in the kernel");
        };
        assert!(matches!(refused, IpcError::Io(_)), "{refused:?}");
    }

    #[test]
    fn rings_are_sealed() {
        let file = ring::create(RING_BYTES).unwrap();
        let _own = OwnRing::map(&file, RING_BYTES).unwrap();
        ring::seal(&file, true).unwrap();
        for bytes in [0, 2 * RING_BYTES as u64] {
            assert!(rustix::fs::ftruncate(&file, bytes).is_err());
        }
        let theirs = ring::create(RING_BYTES).unwrap();
        ring::seal(&theirs, false).unwrap();
        // The worker can write its own, and read the pool's.
        assert!(OwnRing::map(&theirs, RING_BYTES).is_ok());
        assert!(PeerRing::map(&file, RING_BYTES).is_ok());
        assert!(OwnRing::map(&file, RING_BYTES).is_err(), "the pool's ring can be written");
        assert!(rustix::io::pwrite(&file, b"x", 0).is_err(), "the pool's ring can be written");
        for file in [&file, &theirs] {
            let more = rustix::fs::SealFlags::WRITE;
            assert!(rustix::fs::fcntl_add_seals(file, more).is_err());
        }
    }

    /// Passes `bodies`, a step of either side at a time, as `turns` say.
    fn pass(ring_bytes: usize, bodies: &[Vec<u8>], turns: &[bool]) -> Vec<Vec<u8>> {
        let (mut pool, mut worker) = Channel::pair(ring_bytes).unwrap();
        let mut turns = turns.iter().copied().cycle();
        let mut passed = Vec::new();
        for body in bodies {
            let (pool_own, pool_peer) = pool.rings();
            let (worker_own, worker_peer) = worker.rings();
            let frame = [&[0; frame::HEADER_BYTES][..], body].concat();
            let mut outgoing = Outgoing::new(worker_own, frame, 0).unwrap();
            let mut incoming = Incoming::new(pool_own, Vec::new(), 1 << 20);
            let (mut sent, mut received) = (false, false);
            while !sent || !received {
                if turns.next().unwrap() && !sent {
                    sent = outgoing.step(worker_own, worker_peer).unwrap() == Step::Done;
                } else if !received {
                    received = incoming.step(pool_own, pool_peer).unwrap() == Step::Done;
                }
            }
            passed.push(incoming.finish().0);
        }
        passed
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn frames_of_any_length_pass_in_any_order_of_steps(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 1..6),
            ring_bytes in RING_BYTES_MIN..3 * RING_BYTES_MIN,
            turns in prop::collection::vec(any::<bool>(), 1..40),
        ) {
            // Either side gets a turn again and again.
            let turns = [&turns[..], &[true, false]].concat();
            prop_assert_eq!(pass(ring_bytes, &bodies, &turns), bodies);
        }

        #[test]
        fn no_word_of_a_worker_makes_the_pool_read_or_keep_more_than_it_allows(
            steps in prop::collection::vec((any::<u8>(), any::<u32>()), 0..60),
        ) {
            let bytes: Vec<u8> = steps
                .iter()
                .flat_map(|(op, value)| [&[*op][..], &value.to_le_bytes()].concat())
                .collect();
            let run = crate::fuzz::worker_ring(&bytes).unwrap();
            prop_assert!(run.held_bytes_max <= crate::fuzz::RING_BODY_BYTES_MAX, "{run:?}");
        }
    }
}
