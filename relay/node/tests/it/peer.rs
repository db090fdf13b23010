//! A peer under a test's control: plain streams to a relay, and the codecs.

use std::time::Duration;

use bytes::Bytes;
use futures::{AsyncRead, AsyncReadExt, AsyncWriteExt, StreamExt};
use libp2p::{
    Multiaddr, PeerId, Stream, StreamProtocol, Swarm, identify, identity,
    multiaddr::Protocol,
    noise, ping,
    swarm::{NetworkBehaviour, SwarmEvent},
    tcp, yamux,
};
use libp2p_stream::{Control, IncomingStreams};
use protocol::{
    Text, WakuMessage, filter, frame,
    light_push::{self, Reply},
    store,
};

/// Everything a relay does for a test takes less.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

#[derive(NetworkBehaviour)]
struct Behaviour {
    streams: libp2p_stream::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
}

/// A connected peer. Dropping it ends its connection.
pub(crate) struct Client {
    /// Its own id.
    pub(crate) id: PeerId,
    relay: PeerId,
    control: Control,
    pushes: Option<IncomingStreams>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    /// Connects to a relay.
    pub(crate) async fn connect(address: &str) -> Self {
        Self::try_connect(address).await.unwrap_or_else(|error| panic!("{error}"))
    }

    /// The same; the reason if it fails.
    pub(crate) async fn try_connect(address: &str) -> Result<Self, String> {
        let swarm = swarm();
        let control = swarm.behaviour().streams.new_control();
        Self::dial(address, swarm, control).await
    }

    /// Connects, and takes the streams that the relay opens for a protocol.
    pub(crate) async fn serving(address: &str, name: &'static str) -> (Self, IncomingStreams) {
        let swarm = swarm();
        let mut control = swarm.behaviour().streams.new_control();
        let streams = control.accept(StreamProtocol::new(name)).unwrap();
        let client = Self::dial(address, swarm, control).await;
        (client.unwrap_or_else(|error| panic!("{error}")), streams)
    }

    async fn dial(
        address: &str,
        mut swarm: Swarm<Behaviour>,
        mut control: Control,
    ) -> Result<Self, String> {
        let address: Multiaddr = address.parse().unwrap();
        let relay = match address.iter().last() {
            Some(Protocol::P2p(peer)) => peer,
            other => panic!("{address} ends in {other:?}"),
        };
        let id = *swarm.local_peer_id();
        let pushes = control.accept(StreamProtocol::new(filter::PUSH_PROTOCOL)).unwrap();
        swarm.dial(address).unwrap();
        let connected = async {
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::ConnectionEstablished { .. } => return Ok(()),
                    SwarmEvent::OutgoingConnectionError { error, .. } => {
                        return Err(error.to_string());
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(TIMEOUT, connected).await.map_err(|error| error.to_string())??;
        let task = tokio::spawn(async move {
            loop {
                swarm.select_next_some().await;
            }
        });
        Ok(Self { id, relay, control, pushes: Some(pushes), task })
    }

    /// Opens a stream.
    pub(crate) async fn open(&mut self, name: &'static str) -> Option<Stream> {
        let opening = self.control.open_stream(self.relay, StreamProtocol::new(name));
        tokio::time::timeout(TIMEOUT, opening).await.expect("opened in time").ok()
    }

    /// One request and its reply.
    pub(crate) async fn request(&mut self, name: &'static str, request: &[u8]) -> Option<Bytes> {
        let mut stream = self.open(name).await?;
        stream.write_all(&frame::with_length(request)).await.ok()?;
        stream.flush().await.ok()?;
        read(&mut stream).await
    }

    /// Pushes a message by light push version 3.
    pub(crate) async fn push(&mut self, message: &WakuMessage) -> Option<Reply> {
        let request = light_push::Request {
            request_id: Text::from("a request"),
            pubsub_topic: None,
            message: message.encode().into(),
        };
        let reply = self.request(light_push::PROTOCOL, &request.encode()).await?;
        Some(Reply::decode(reply).unwrap())
    }

    /// Changes filter subscriptions; the status code.
    pub(crate) async fn filter(&mut self, action: filter::Action, topics: &[&str]) -> u32 {
        let request = filter::Request {
            request_id: Text::from("a request"),
            action,
            pubsub_topic: None,
            content_topics: topics.iter().map(|topic| Text::from(*topic)).collect(),
        };
        let reply = self.request(filter::SUBSCRIBE_PROTOCOL, &request.encode()).await.unwrap();
        filter::Reply::decode(reply).unwrap().status.code()
    }

    /// A page of the store.
    pub(crate) async fn query(&mut self, request: &store::Request) -> store::Reply {
        let reply = self.request(store::PROTOCOL, &request.encode()).await.unwrap();
        store::Reply::decode(reply).unwrap()
    }

    /// The next message pushed by filter.
    pub(crate) async fn pushed(&mut self) -> WakuMessage {
        let pushes = self.pushes.as_mut().unwrap();
        let (_, mut stream) =
            tokio::time::timeout(TIMEOUT, pushes.next()).await.expect("pushed in time").unwrap();
        let push = filter::Push::decode(read(&mut stream).await.unwrap()).unwrap();
        assert!(push.pubsub_topic.is_some());
        WakuMessage::decode(push.message).unwrap()
    }

    /// Whether the connection is still there.
    pub(crate) async fn is_connected(&mut self) -> bool {
        self.push(&message("/test/1/alive/proto", b"alive")).await.is_some()
    }
}

/// An ordinary client is served: its messages are received and found.
pub(crate) async fn serves(address: &str, content_topic: &str) {
    let mut sender = Client::connect(address).await;
    let mut receiver = Client::connect(address).await;
    assert_eq!(receiver.filter(filter::Action::Subscribe, &[content_topic]).await, 200);
    let sent = message(content_topic, b"from an ordinary client");
    let pushed = sender.push(&sent).await.expect("an answer");
    assert_eq!(pushed.status.code(), 200, "{pushed:?}");
    assert_eq!(receiver.pushed().await, sent);
    let request = store::Request {
        request_id: Text::from("a request"),
        include_data: true,
        content_topics: vec![content_topic.into()],
        forward: false,
        limit: Some(1),
        ..store::Request::default()
    };
    let found = sender.query(&request).await.entries;
    assert_eq!(found[0].message.as_deref(), Some(&sent.encode()[..]));
}

/// A frame, if one comes before the end.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Bytes> {
    let reading = async {
        let mut prefix = Vec::new();
        let length = loop {
            let mut byte = [0];
            stream.read_exact(&mut byte).await.ok()?;
            prefix.push(byte[0]);
            if let Some((length, _)) = frame::decode_length(&prefix, 64 << 20).unwrap() {
                break length;
            }
        };
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        Some(Bytes::from(body))
    };
    tokio::time::timeout(TIMEOUT, reading).await.expect("answered in time")
}

/// A message of now.
pub(crate) fn message(content_topic: &str, payload: &[u8]) -> WakuMessage {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let timestamp = i64::try_from(now.as_nanos()).unwrap();
    let mut message = WakuMessage::new(content_topic, payload.to_vec());
    message.timestamp = Some(timestamp);
    message
}

fn swarm() -> Swarm<Behaviour> {
    let keys = identity::Keypair::generate_ed25519();
    libp2p::SwarmBuilder::with_existing_identity(keys)
        .with_tokio()
        .with_tcp(tcp::Config::new().nodelay(true), noise::Config::new, yamux::Config::default)
        .unwrap()
        .with_behaviour(|keys| Behaviour {
            streams: libp2p_stream::Behaviour::new(),
            identify: identify::Behaviour::new(identify::Config::new(
                "/test".into(),
                keys.public(),
            )),
            ping: ping::Behaviour::default(),
        })
        .unwrap()
        .with_swarm_config(|config| config.with_idle_connection_timeout(Duration::from_secs(600)))
        .build()
}
