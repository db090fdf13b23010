//! A receiver: subscribes to the run's content topic by filter, and accepts the messages that are
//! pushed to it.
//!
//! Bounds: streams of its connection; a bit for each message. Must never know: which messages were
//! accepted.

use std::{
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, future::BoxFuture};
use libp2p::identity::Keypair;
use protocol::{
    StatusCode, WakuMessage,
    filter::{self, Action, Push, Reply, Request},
};

use crate::{
    channel::Channel,
    payload,
    session::{IdentifyMessage, Role, Session},
    shared::{Ready, RunContext},
    tally::{ReceiverTally, lock},
};

/// Nodes forget subscribers that do not ping for five minutes.
const PING_EVERY: Duration = Duration::from_secs(60);

pub(crate) struct Receiver {
    shared: Arc<RunContext>,
    node: usize,
    received: Arc<Mutex<ReceiverTally>>,
}

impl Role for Receiver {
    fn protocols(&self) -> &'static [&'static str] {
        &[filter::PUSH_PROTOCOL]
    }

    fn serve(self: Arc<Self>, _: &'static str, mut channel: Channel) -> BoxFuture<'static, ()> {
        async move {
            // Some nodes push several messages on one stream.
            while let Ok(Some(frame)) = channel.frame(filter::PUSH_BYTES_MAX).await {
                match Push::decode(frame) {
                    Ok(push) => record_message(&self.shared, &self.received, push.message),
                    Err(_) => record_damaged(&self.shared, &self.received),
                }
            }
            let _ = channel.close().await;
        }
        .boxed()
    }
}

/// Counts a message that came.
pub(crate) fn record_message(
    shared: &RunContext,
    received: &Mutex<ReceiverTally>,
    message: bytes::Bytes,
) {
    let now = shared.target.now_nanos();
    let Ok(message) = WakuMessage::decode(message) else { return record_damaged(shared, received) };
    if message.content_topic.as_str() != shared.target.content_topic {
        // Of other clients of this node.
        return;
    }
    let came = payload::read(&message.payload);
    lock(received).record_message(&shared.issued, came, shared.phase.load(Relaxed), now);
}

fn record_damaged(shared: &RunContext, received: &Mutex<ReceiverTally>) {
    let phase = shared.phase.load(Relaxed);
    lock(received).record_message(&shared.issued, Err(payload::Damage::Foreign), phase, 0);
}

impl Receiver {
    pub(crate) fn new(
        shared: Arc<RunContext>,
        node: usize,
        received: Arc<Mutex<ReceiverTally>>,
    ) -> Arc<Self> {
        Arc::new(Self { shared, node, received })
    }

    /// Receives until it is aborted. A connection that ends is reestablished.
    pub(crate) async fn run(self: Arc<Self>, ready: Ready) {
        let keys = Keypair::generate_secp256k1();
        loop {
            let (session, about) =
                self.shared.connect(&keys, self.node, &self, |error| ready.waiting(&error)).await;
            if let Err(error) = self.receive(session, &about, &ready).await {
                ready.waiting(&error);
                self.shared.record_connection_lost("receivers", &format!("{error:#}"));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn receive(
        &self,
        mut session: Session<Self>,
        about: &IdentifyMessage,
        ready: &Ready,
    ) -> Result<()> {
        ensure!(
            about.speaks(filter::SUBSCRIBE_PROTOCOL),
            "the node serves no filter; it is {:?}",
            about.agent
        );
        self.request(&mut session, Action::Subscribe).await?;
        ready.ready(about);
        loop {
            session.drive_until(tokio::time::sleep(PING_EVERY)).await?;
            if self.request(&mut session, Action::Ping).await.is_err() {
                self.request(&mut session, Action::Subscribe).await?;
            }
        }
    }

    async fn request(&self, session: &mut Session<Self>, action: Action) -> Result<()> {
        let target = &self.shared.target;
        let mut request = Request { request_id: "1".into(), action, ..Request::default() };
        if action == Action::Subscribe {
            request.pubsub_topic = Some(target.pubsub_topic.as_str().into());
            request.content_topics = vec![target.content_topic.as_str().into()];
        }
        let (name, bytes_max) = (filter::SUBSCRIBE_PROTOCOL, filter::REPLY_BYTES_MAX);
        let reply = session.request(name, &request.encode(), bytes_max).await?;
        let reply = Reply::decode(reply.with_context(|| format!("filter, {action:?}"))?)?;
        ensure!(
            reply.status == StatusCode::Ok,
            "the node answered {} to filter's {action:?}: {}",
            reply.status.code(),
            reply.status_text.unwrap_or_default()
        );
        Ok(())
    }
}
