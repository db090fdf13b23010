//! A peer without manners: a connection, its multiplexer, and streams on which a test writes what
//! it wants. It answers nothing by itself but pings, and can stop reading altogether.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll},
};

use futures::{AsyncReadExt, AsyncWriteExt};
use libp2p::{
    Multiaddr, Transport,
    core::{
        Endpoint,
        muxing::{StreamMuxer, StreamMuxerBox, SubstreamBox},
        transport::{DialOpts, PortUse},
        upgrade::Version,
    },
    identity,
    multiaddr::Protocol,
    noise, tcp, yamux,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use crate::peer::TIMEOUT;

const MULTISTREAM: &str = "/multistream/1.0.0";
const PING: &str = "/ipfs/ping/1.0.0";

/// How streams share the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Multiplexer {
    Yamux,
    Mplex,
}

type OpenRequest = oneshot::Sender<Option<SubstreamBox>>;

/// A connection. Dropping it closes it.
pub(crate) struct Raw {
    open_tx: mpsc::UnboundedSender<OpenRequest>,
    inbound: mpsc::UnboundedReceiver<(String, SubstreamBox)>,
    frozen: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Raw {
    /// Connects. Streams that the relay opens are taken for `accepts`, and refused for all else.
    pub(crate) async fn connect(
        address: &str,
        multiplexer: Multiplexer,
        accepts: &'static [&'static str],
    ) -> Self {
        Self::try_connect(address, multiplexer, accepts).await.expect("connected")
    }

    /// The same; nothing if the relay refuses it. One that is refused after its handshake notices
    /// later.
    pub(crate) async fn try_connect(
        address: &str,
        multiplexer: Multiplexer,
        accepts: &'static [&'static str],
    ) -> Option<Self> {
        let mut muxer = tokio::time::timeout(TIMEOUT, dial(address, multiplexer)).await.ok()??;
        let (open_tx, mut open_rx) = mpsc::unbounded_channel::<OpenRequest>();
        let (arrived, inbound) = mpsc::unbounded_channel();
        let frozen = Arc::new(AtomicBool::new(false));
        let is_frozen = frozen.clone();
        let mut opening: Option<OpenRequest> = None;
        let task = tokio::spawn(poll_fn(move |cx| {
            if is_frozen.load(SeqCst) {
                return Poll::Pending;
            }
            drive(&mut muxer, cx, &mut open_rx, &mut opening, |stream| {
                tokio::spawn(take(stream, accepts, arrived.clone()));
            })
        }));
        Some(Self { open_tx, inbound, frozen, task })
    }

    /// A stream for which no protocol was agreed on.
    pub(crate) async fn open_bare(&self) -> Option<SubstreamBox> {
        let (done, opened) = oneshot::channel();
        self.open_tx.send(done).ok()?;
        tokio::time::timeout(TIMEOUT, opened).await.expect("opened in time").ok()?
    }

    /// A stream for a protocol.
    pub(crate) async fn open(&self, name: &str) -> Option<SubstreamBox> {
        let mut stream = self.open_bare().await?;
        let agreed = async {
            stream.write_all(&[line(MULTISTREAM), line(name)].concat()).await.ok()?;
            stream.flush().await.ok()?;
            let answers = [read_line(&mut stream).await?, read_line(&mut stream).await?];
            (answers == [MULTISTREAM, name]).then_some(())
        };
        tokio::time::timeout(TIMEOUT, agreed).await.expect("agreed in time")?;
        Some(stream)
    }

    /// The next stream that the relay opened, and its protocol.
    pub(crate) async fn accepted(&mut self) -> Option<(String, SubstreamBox)> {
        tokio::time::timeout(TIMEOUT, self.inbound.recv()).await.expect("a stream in time")
    }

    /// From now on nothing is read from the socket, nor written to it.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, SeqCst);
    }

    /// Whether the connection was closed by now.
    pub(crate) fn is_closed(&self) -> bool {
        self.task.is_finished()
    }
}

async fn dial(address: &str, multiplexer: Multiplexer) -> Option<StreamMuxerBox> {
    let address: Multiaddr = address.parse().unwrap();
    let address: Multiaddr =
        address.iter().filter(|part| !matches!(part, Protocol::P2p(_))).collect();
    let keys = identity::Keypair::generate_ed25519();
    let secure = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(&keys).unwrap());
    let options = DialOpts { role: Endpoint::Dialer, port_use: PortUse::New };
    let (_, muxer) = match multiplexer {
        Multiplexer::Yamux => {
            let mut config = yamux::Config::default();
            // With the window of each stream, the most that this multiplexer allows.
            config.set_max_num_streams(4096);
            secure.multiplex(config).boxed().dial(address, options).ok()?.await.ok()?
        }
        Multiplexer::Mplex => {
            let mut config = libp2p_mplex::Config::new();
            config.set_max_num_streams(100_000);
            secure.multiplex(config).boxed().dial(address, options).ok()?.await.ok()?
        }
    };
    Some(muxer)
}

/// Ends with the connection.
fn drive(
    muxer: &mut StreamMuxerBox,
    cx: &mut Context<'_>,
    open_rx: &mut mpsc::UnboundedReceiver<OpenRequest>,
    opening: &mut Option<OpenRequest>,
    arrived: impl Fn(SubstreamBox),
) -> Poll<()> {
    if let Poll::Ready(Err(_)) = Pin::new(&mut *muxer).poll(cx) {
        return Poll::Ready(());
    }
    loop {
        match Pin::new(&mut *muxer).poll_inbound(cx) {
            Poll::Ready(Ok(stream)) => arrived(stream),
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Pending => break,
        }
    }
    loop {
        if opening.is_none() {
            let Poll::Ready(Some(next)) = open_rx.poll_recv(cx) else { return Poll::Pending };
            *opening = Some(next);
        }
        let Poll::Ready(opened) = Pin::new(&mut *muxer).poll_outbound(cx) else {
            return Poll::Pending;
        };
        if let Some(done) = opening.take() {
            // The caller may be gone. Data on the stream is noticed at the next poll.
            let _ = done.send(opened.ok());
            cx.waker().wake_by_ref();
        }
    }
}

/// Agrees on the protocol of a stream that the relay opened.
async fn take(
    mut stream: SubstreamBox,
    accepts: &'static [&'static str],
    arrived: mpsc::UnboundedSender<(String, SubstreamBox)>,
) -> Option<()> {
    read_line(&mut stream).await.filter(|line| line == MULTISTREAM)?;
    stream.write_all(&line(MULTISTREAM)).await.ok()?;
    loop {
        let name = read_line(&mut stream).await?;
        let accepted = accepts.contains(&name.as_str()) || name == PING;
        stream.write_all(&line(if accepted { &name } else { "na" })).await.ok()?;
        stream.flush().await.ok()?;
        if accepted && !accepts.contains(&name.as_str()) {
            let mut ping = [0; 32];
            loop {
                stream.read_exact(&mut ping).await.ok()?;
                stream.write_all(&ping).await.ok()?;
                stream.flush().await.ok()?;
            }
        }
        if accepted {
            return arrived.send((name, stream)).ok();
        }
    }
}

/// As multistream-select has it: a length, the text, a line feed.
fn line(text: &str) -> Vec<u8> {
    protocol::frame::with_length(format!("{text}\n").as_bytes())
}

async fn read_line(stream: &mut SubstreamBox) -> Option<String> {
    let mut length = [0];
    stream.read_exact(&mut length).await.ok()?;
    let mut text = vec![0; length[0].into()];
    stream.read_exact(&mut text).await.ok()?;
    Some(String::from_utf8(text).ok()?.trim_end().to_owned())
}
