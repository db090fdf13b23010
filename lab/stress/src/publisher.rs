//! A publisher: pushes messages when they are due, or as fast as the node answers.
//!
//! Open loop: message n is due at a time that does not depend on answers; messages sent later than
//! that count as late, and messages not sent by the end of the phase as unsent. Without a rate it
//! is a closed loop of [`Load::outstanding`] requests.
//!
//! Bounds: requests in flight by [`IN_FLIGHT_MAX`] or [`Load::outstanding`], each for
//! [`Load::answer`] seconds. Must never know: receivers.
//!
//! [`Load::outstanding`]: crate::settings::Load::outstanding
//! [`Load::answer`]: crate::settings::Load::answer

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use anyhow::bail;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{core::muxing::SubstreamBox, identity::Keypair};
use protocol::{MessageHash, StatusCode, Text, WakuMessage, light_push, message_hash};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use tokio::{
    sync::mpsc,
    time::{Instant, Sleep, sleep_until},
};

use crate::{
    channel::Channel,
    payload::Header,
    plan::Phase,
    push_stats::{Answer, PushStats},
    request::{RequestTemplate, Version},
    session::{IdentifyMessage, Plain, Session},
    shared::{Ready, RunContext},
    tally::lock,
    target::wall_nanos,
};

/// Most requests in flight of a publisher.
pub(crate) const IN_FLIGHT_MAX: usize = 192;

/// A phase to be run.
pub(crate) struct Order {
    pub(crate) phase: usize,
    pub(crate) plan: Phase,
    pub(crate) begin: Instant,
    /// Notified once all messages are sent and answered.
    pub(crate) done_tx: mpsc::Sender<()>,
}

/// The phase under way.
struct Running {
    order: Order,
    end: Instant,
    /// Messages that were taken from the schedule.
    scheduled: u64,
    random: StdRng,
}

struct Push {
    phase: usize,
    sequence: u64,
    sampled: Option<(usize, MessageHash)>,
    answer: Answer,
    example: String,
    nanos: u64,
    since_begin_nanos: u64,
    buffer: Vec<u8>,
}

pub(crate) struct Publisher {
    shared: Arc<RunContext>,
    index: usize,
    node: usize,
    /// Figures of the pushes, one entry for each phase.
    pushed: Arc<Mutex<Vec<PushStats>>>,
    order_rx: mpsc::Receiver<Order>,
    running: Option<Running>,
    flying: FuturesUnordered<BoxFuture<'static, Push>>,
    timer: Pin<Box<Sleep>>,
    buffers: Vec<Vec<u8>>,
}

impl Publisher {
    pub(crate) fn new(
        shared: Arc<RunContext>,
        index: usize,
        node: usize,
        phases: usize,
    ) -> (Self, mpsc::Sender<Order>, Arc<Mutex<Vec<PushStats>>>) {
        let (order_tx, order_rx) = mpsc::channel(1);
        let pushed = Arc::new(Mutex::new(vec![PushStats::default(); phases]));
        let publisher = Self {
            shared,
            index,
            node,
            pushed: pushed.clone(),
            order_rx,
            running: None,
            flying: FuturesUnordered::new(),
            timer: Box::pin(sleep_until(Instant::now())),
            buffers: Vec::new(),
        };
        (publisher, order_tx, pushed)
    }

    /// Runs until the channel of orders is closed. A connection that ends is reestablished.
    pub(crate) async fn run(mut self, ready: Ready) {
        let keys = Keypair::generate_secp256k1();
        let shared = self.shared.clone();
        loop {
            let role = Arc::new(Plain);
            let connecting = shared.connect(&keys, self.node, &role, |error| ready.waiting(&error));
            let mut connecting = Box::pin(connecting);
            // Orders are accepted, and end in time, also without a connection.
            let Some((mut session, about)) = poll_fn(|cx| {
                if self.poll_order(cx).is_ready() {
                    return Poll::Ready(None);
                }
                self.poll_end(cx);
                connecting.poll_unpin(cx).map(Some)
            })
            .await
            else {
                return;
            };
            let template = match request_template(&about, &shared) {
                Ok(template) => Arc::new(template),
                Err(error) => {
                    ready.waiting(&error);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            ready.ready(&about);
            let ended = poll_fn(|cx| self.poll(&mut session, &template, cx)).await;
            let Some(error) = ended else { return };
            shared.record_connection_lost("publishers", &error.to_string());
            // Their streams ended with the connection: each returns an error.
            let rest = poll_fn(|cx| {
                while let Poll::Ready(Some(push)) = self.flying.poll_next_unpin(cx) {
                    self.ended(push);
                }
                if self.flying.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            });
            drop(session);
            let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
            self.flying.clear();
        }
    }

    /// Some with why the connection ended, or none when there will be no more orders.
    fn poll(
        &mut self,
        session: &mut Session<Plain>,
        template: &Arc<RequestTemplate>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Error>> {
        loop {
            if let Poll::Ready(error) = session.poll(cx) {
                return Poll::Ready(Some(error));
            }
            while let Poll::Ready(Some(push)) = self.flying.poll_next_unpin(cx) {
                self.ended(push);
            }
            if self.poll_order(cx).is_ready() {
                return Poll::Ready(None);
            }
            match self.poll_send(session, template, cx) {
                Ok(true) => {}
                Ok(false) => {
                    self.poll_end(cx);
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Some(error)),
            }
        }
    }

    /// Ready when there will be no more orders.
    fn poll_order(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.running.is_some() {
            return Poll::Pending;
        }
        match self.order_rx.poll_recv(cx) {
            Poll::Ready(Some(order)) => {
                let end = order.begin + order.plan.length();
                let seed = self.shared.target.run ^ (self.index as u64) << 32 ^ order.phase as u64;
                let random = StdRng::seed_from_u64(seed);
                self.running = Some(Running { order, end, scheduled: 0, random });
                Poll::Pending
            }
            Poll::Ready(None) => Poll::Ready(()),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Sends what is due and allowed; whether it sent anything.
    fn poll_send(
        &mut self,
        session: &mut Session<Plain>,
        template: &Arc<RequestTemplate>,
        cx: &mut Context<'_>,
    ) -> io::Result<bool> {
        let mut sent = false;
        loop {
            let Some(running) = &self.running else { return Ok(sent) };
            let now = Instant::now();
            let load = &self.shared.load;
            let due = running.due(self.index, load.publishers);
            let most = if due.is_some() { IN_FLIGHT_MAX } else { load.outstanding.into() };
            let due = due.unwrap_or(now.max(running.order.begin));
            if now >= running.end || due > now || due >= running.end || self.flying.len() >= most {
                return Ok(sent);
            }
            match session.poll_stream(cx) {
                Poll::Ready(stream) => self.send(stream?, template, now, due),
                Poll::Pending => return Ok(sent),
            }
            sent = true;
        }
    }

    fn send(
        &mut self,
        stream: SubstreamBox,
        template: &Arc<RequestTemplate>,
        now: Instant,
        due: Instant,
    ) {
        let Some(running) = &mut self.running else { return };
        let phase = running.order.phase;
        running.scheduled += 1;
        let Some(sequence) = self.shared.issued.issue(phase, self.index) else { return };
        let random = running.random.next_u64();
        let sizes = running.order.plan.payload;
        let span = (sizes.max - sizes.min + 1) as u64;
        let bytes = sizes.min + (random % span) as usize;
        let flood = running.order.plan.rate.is_none();
        let begin = running.order.begin;
        let target = &self.shared.target;
        let header = Header {
            run: target.run,
            phase: phase as u16,
            sender: self.index as u16,
            sequence,
            sent_nanos: target.now_nanos(),
        };
        let id = format!("{}-{phase}-{sequence}", self.index);
        let timestamp = wall_nanos();
        let mut buffer = self.buffers.pop().unwrap_or_default();
        let payload = template.write(&id, timestamp, &header, bytes, &mut buffer);
        let sample = self.shared.load.store_sample;
        let sampled = PushStats::sample_index(sequence, random >> 20, sample).map(|place| {
            let payload = buffer.get(payload).unwrap_or_default().to_vec();
            let message = WakuMessage {
                timestamp: Some(timestamp),
                ..WakuMessage::new(template.content_topic.as_str(), payload)
            };
            (place, message_hash(&template.pubsub_topic, &message))
        });
        {
            let mut pushed = lock(&self.pushed);
            if let Some(pushed) = pushed.get_mut(phase) {
                pushed.sent += 1;
                if !flood {
                    pushed.lateness.record((now - due).as_nanos() as u64);
                }
            }
        }
        let load = &self.shared.load;
        let (pause, answer_time) = (Duration::from_millis(load.pause), load.answer_time());
        let template = template.clone();
        self.flying.push(
            async move {
                let pushing = push(stream, &template, &id, &buffer);
                let (answer, example) = match tokio::time::timeout(answer_time, pushing).await {
                    Ok(Ok((answer, text))) => (answer, text.to_string()),
                    Ok(Err(error)) => (Answer::Broken, error.to_string()),
                    Err(_) => (Answer::Timeout, format!("nothing within {answer_time:?}")),
                };
                let nanos = now.elapsed().as_nanos() as u64;
                let since_begin_nanos = begin.elapsed().as_nanos() as u64;
                if flood && matches!(answer, Answer::Code(429 | 503) | Answer::RefusedV2) {
                    tokio::time::sleep(pause).await;
                }
                Push { phase, sequence, sampled, answer, example, nanos, since_begin_nanos, buffer }
            }
            .boxed(),
        );
    }

    fn ended(&mut self, push: Push) {
        let mut pushed = lock(&self.pushed);
        if let Some(pushed) = pushed.get_mut(push.phase) {
            pushed.record_answer(push.answer, push.nanos, &push.example);
            pushed.last_answer_nanos = pushed.last_answer_nanos.max(push.since_begin_nanos);
            if push.answer == Answer::ACCEPTED {
                pushed.record_accepted(push.sequence, push.sampled);
            }
        }
        if self.buffers.len() < IN_FLIGHT_MAX {
            self.buffers.push(push.buffer);
        }
    }

    /// Sleeps until there is something to do, and ends the phase when its time is over.
    fn poll_end(&mut self, cx: &mut Context<'_>) {
        let Some(running) = &self.running else { return };
        let now = Instant::now();
        if now >= running.end {
            if !self.flying.is_empty() {
                return;
            }
            let due = running.due_in_all(self.index, self.shared.load.publishers);
            if let Some(pushed) = lock(&self.pushed).get_mut(running.order.phase) {
                pushed.due = due.unwrap_or(pushed.sent);
            }
            // Its buffer has room for every publisher.
            let _ = running.order.done_tx.try_send(());
            self.running = None;
            // Looks for the next order.
            cx.waker().wake_by_ref();
            return;
        }
        let next =
            running.due(self.index, self.shared.load.publishers).unwrap_or(running.order.begin);
        let next = if next > now { next.min(running.end) } else { running.end };
        self.timer.as_mut().reset(next);
        if self.timer.poll_unpin(cx).is_ready() {
            // It passed meanwhile.
            cx.waker().wake_by_ref();
        }
    }
}

impl Running {
    /// When message number `scheduled` of this publisher is due; `None` without a rate.
    fn due(&self, index: usize, publishers: usize) -> Option<Instant> {
        let rate = self.order.plan.rate?;
        let number = self.scheduled as f64 * publishers as f64 + index as f64;
        Some(self.order.begin + Duration::from_secs_f64(number / rate))
    }

    /// How many messages of this publisher are due in the whole phase; `None` without a rate.
    fn due_in_all(&self, index: usize, publishers: usize) -> Option<u64> {
        let rate = self.order.plan.rate?;
        let all = self.order.plan.length().as_secs_f64() * rate;
        Some(((all - index as f64) / publishers as f64).ceil().max(0.0) as u64)
    }
}

fn request_template(
    about: &IdentifyMessage,
    shared: &RunContext,
) -> anyhow::Result<RequestTemplate> {
    let version = if about.speaks(light_push::PROTOCOL) {
        Version::V3
    } else if about.speaks(light_push::PROTOCOL_V2) {
        Version::V2
    } else {
        bail!("the node serves no light push, version 3 or 2; it is {:?}", about.agent);
    };
    let target = &shared.target;
    Ok(RequestTemplate::new(version, &target.pubsub_topic, &target.content_topic))
}

async fn push(
    stream: SubstreamBox,
    template: &RequestTemplate,
    id: &str,
    request: &[u8],
) -> io::Result<(Answer, Text)> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let mut channel = Channel::new(stream);
    channel.write(request).await?;
    channel.confirm(&template.proposal).await?;
    let reply = channel.frame(light_push::REPLY_BYTES_MAX).await?;
    let reply = reply.ok_or(io::ErrorKind::UnexpectedEof)?;
    // The node may have closed by now; its reply is here.
    let _ = channel.close().await;
    let (their_id, answer, text) = match template.version {
        Version::V3 => {
            let reply =
                light_push::Reply::decode(reply).map_err(|error| invalid(error.to_string()))?;
            let answer = match reply.status {
                StatusCode::Ok => Answer::ACCEPTED,
                status => Answer::Code(status.code()),
            };
            (reply.request_id, answer, reply.status_text)
        }
        Version::V2 => {
            let reply =
                light_push::ReplyV2::decode(reply).map_err(|error| invalid(error.to_string()))?;
            let answer = if reply.is_success { Answer::ACCEPTED } else { Answer::RefusedV2 };
            (reply.request_id, answer, reply.info)
        }
    };
    if their_id.as_str() != id {
        // A node that cannot read a request does not know its id.
        if answer == Answer::ACCEPTED {
            return Err(invalid(format!("the answer is to request {their_id:?}, not {id:?}")));
        }
    }
    Ok((answer, text.unwrap_or_default()))
}
