//! Tests: nodes that refuse, send false data, stop answering, disconnect or send invalid data, on
//! real sockets. The driver reports each case, in time.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Parser;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use libp2p::{
    Multiaddr, PeerId, Transport,
    core::{
        muxing::{StreamMuxerBox, StreamMuxerExt, SubstreamBox},
        transport::{ListenerId, TransportEvent},
        upgrade::Version,
    },
    identity::Keypair,
    noise, tcp, yamux,
};
use protocol::{StatusCode, WakuMessage, filter, frame, light_push, wire::put_bytes};
use tokio::io::AsyncWriteExt;

use crate::{Options, Stop, channel::Channel, measure, payload, report::Report, tally::lock};

/// Reaction of a faulty node to pushes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PushBehavior {
    /// Refuses each with a code and a reason.
    Refuse,
    /// Takes each and never answers.
    Ignore,
    /// Answers with invalid data.
    Garbage,
    /// Accepts and delivers nothing.
    AcceptOnly,
    /// Delivers each to receivers, the first damaged, the second twice, and then the rest.
    Deliver,
}

#[derive(Debug)]
struct AdversarialNode {
    pushes: PushBehavior,
    /// Whether a filter subscription is answered with a refusal.
    refuses_filter: bool,
    /// It goes away at that time, and does not come back.
    gone_at: Option<Instant>,
    accepted: Mutex<VecDeque<Bytes>>,
    count: Mutex<u64>,
}

const SERVED: [&str; 3] = ["/ipfs/id/1.0.0", light_push::PROTOCOL, filter::SUBSCRIBE_PROTOCOL];

/// Serves until it is dropped with its runtime; its address.
async fn serve(node: AdversarialNode) -> Multiaddr {
    let keys = Keypair::generate_ed25519();
    let mut transport = tcp::tokio::Transport::new(tcp::Config::new().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(&keys).unwrap())
        .multiplex(yamux::Config::default())
        .boxed();
    transport.listen_on(ListenerId::next(), "/ip4/127.0.0.1/tcp/0".parse().unwrap()).unwrap();
    let Some(TransportEvent::NewAddress { listen_addr, .. }) = transport.next().await else {
        panic!("it listens")
    };
    let node = Arc::new(node);
    tokio::spawn(async move {
        let gone = node.gone_at;
        let accepting = async {
            let mut connections = FuturesUnordered::new();
            loop {
                tokio::select! {
                    event = transport.next() => {
                        if let Some(TransportEvent::Incoming { upgrade, .. }) = event {
                            connections.push(connection(upgrade.boxed(), node.clone()));
                        }
                    }
                    Some(()) = connections.next() => {}
                }
            }
        };
        match gone {
            // Listener and connections go at once.
            Some(at) => drop(tokio::time::timeout_at(at.into(), accepting).await),
            None => accepting.await,
        }
    });
    listen_addr
}

type Upgrade = BoxFuture<'static, std::io::Result<(PeerId, StreamMuxerBox)>>;

async fn connection(upgrade: Upgrade, node: Arc<AdversarialNode>) {
    let Ok((_, mut muxer)) = upgrade.await else { return };
    let mut streams: FuturesUnordered<BoxFuture<'static, bool>> = FuturesUnordered::new();
    let mut delivering = FuturesUnordered::new();
    let mut is_receiver = false;
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    loop {
        tokio::select! {
            stream = std::future::poll_fn(|cx| muxer.poll_inbound_unpin(cx)) => {
                let Ok(stream) = stream else { return };
                let node = node.clone();
                streams.push(async move { answer(stream, &node).await.unwrap_or(false) }.boxed());
            }
            Some(subscribed) = streams.next() => is_receiver |= subscribed,
            Some(()) = delivering.next() => {}
            _ = tick.tick(), if is_receiver => {
                let next = lock(&node.accepted).pop_front();
                let Some(message) = next else { continue };
                let stream = std::future::poll_fn(|cx| muxer.poll_outbound_unpin(cx)).await;
                let Ok(stream) = stream else { return };
                delivering.push(async move { drop(deliver(stream, message).await) });
            }
        }
    }
}

async fn deliver(stream: SubstreamBox, message: Bytes) -> std::io::Result<()> {
    let mut channel = Channel::open(stream, filter::PUSH_PROTOCOL, &[]).await?;
    let mut body = Vec::new();
    put_bytes(1, &message, &mut body);
    channel.write(&frame::with_length(&body)).await?;
    channel.close().await
}

/// One stream of a client; whether it subscribed to a filter.
async fn answer(stream: SubstreamBox, node: &AdversarialNode) -> std::io::Result<bool> {
    let mut channel = Channel::new(stream);
    let Some(name) = channel.accept(&SERVED).await? else { return Ok(false) };
    if name == SERVED[0] {
        let mut about = Vec::new();
        SERVED.iter().for_each(|name| put_bytes(3, name.as_bytes(), &mut about));
        put_bytes(6, b"odd/1", &mut about);
        channel.write(&frame::with_length(&about)).await?;
        channel.close().await?;
        return Ok(false);
    }
    let Some(request) = channel.frame(1 << 20).await? else { return Ok(false) };
    if name == filter::SUBSCRIBE_PROTOCOL {
        let status = if node.refuses_filter { StatusCode::from(503) } else { StatusCode::Ok };
        let reply =
            filter::Reply { request_id: "1".into(), status, status_text: Some("not today".into()) };
        channel.write(&frame::with_length(&reply.encode())).await?;
        channel.close().await?;
        return Ok(status == StatusCode::Ok);
    }
    let request = light_push::Request::decode(request).map_err(std::io::Error::other)?;
    let (status, text) = match node.pushes {
        PushBehavior::Refuse => (StatusCode::from(420), "no room for anybody"),
        PushBehavior::Ignore => std::future::pending().await,
        PushBehavior::Garbage => {
            channel.write(&[9, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]).await?;
            return Ok(false);
        }
        PushBehavior::AcceptOnly => (StatusCode::Ok, ""),
        PushBehavior::Deliver => {
            let number = {
                let mut count = lock(&node.count);
                *count += 1;
                *count
            };
            let mut waiting = lock(&node.accepted);
            match number {
                1 => waiting.push_back(damaged(&request.message)),
                2 => waiting.extend([request.message.clone(), request.message.clone()]),
                _ => waiting.push_back(request.message.clone()),
            }
            (StatusCode::Ok, "")
        }
    };
    let reply = light_push::Reply {
        request_id: request.request_id,
        status,
        status_text: Some(text.into()),
        relay_peer_count: None,
    };
    channel.write(&frame::with_length(&reply.encode())).await?;
    channel.close().await?;
    Ok(false)
}

/// The message with one bit of its payload changed.
fn damaged(message: &Bytes) -> Bytes {
    let message = WakuMessage::decode(message.clone()).unwrap();
    let mut bytes = message.payload.to_vec();
    bytes[payload::HEADER_BYTES] ^= 1;
    WakuMessage { payload: bytes.into(), ..message }.encode().into()
}

fn adversarial_node(pushes: PushBehavior) -> AdversarialNode {
    AdversarialNode {
        pushes,
        refuses_filter: false,
        gone_at: None,
        accepted: Mutex::default(),
        count: Mutex::default(),
    }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

/// One publisher, one receiver, ten messages a second.
async fn run_load(address: &Multiaddr, flags: &str, stop: &Stop) -> anyhow::Result<Report> {
    let usual = "--publishers 1 --receivers 1 --relay-peers 0 --after 0 --drain 1 --answer 1 \
                 --rate 20 --phase 1 --timeout 3";
    let address = address.to_string();
    // The last flag counts.
    let mut words = vec!["stress", "--node", &address];
    let given: Vec<&str> = flags.split_whitespace().collect();
    for pair in usual.split_whitespace().collect::<Vec<_>>().chunks(2) {
        if !given.contains(&pair[0]) {
            words.extend(pair);
        }
    }
    words.extend(given);
    measure(&Cli::try_parse_from(words)?.options, stop).await
}

fn answers(report: &Report) -> Vec<(String, u64)> {
    let all = report.phases[0].answers.iter();
    all.map(|answers| (answers.answer.clone(), answers.latency.count)).collect()
}

/// Messages of the run, at most the 20 that were due: a busy machine sends fewer of them.
fn sent(report: &Report) -> u64 {
    let phase = &report.phases[0];
    assert!((1..=20).contains(&phase.sent) && phase.due <= 20, "{}", report.text());
    phase.sent
}

#[tokio::test]
async fn a_node_that_refuses_everything_is_reported_by_code_and_reason() {
    let address = serve(adversarial_node(PushBehavior::Refuse)).await;
    let report = run_load(&address, "", &Stop::never()).await.unwrap();
    let sent = sent(&report);
    assert_eq!(answers(&report), [("420".to_owned(), sent)]);
    assert_eq!(report.phases[0].answers[0].example, "no room for anybody");
    assert!(
        !report.good && report.verdict.contains(&format!("no message was accepted of {sent} sent")),
        "{report:?}"
    );
    assert!(report.text().contains(&format!("{sent} x 420, such as: no room for anybody")));
}

#[tokio::test]
async fn a_node_that_refuses_receivers_is_named_with_its_answer() {
    let address = serve(AdversarialNode {
        refuses_filter: true,
        ..adversarial_node(PushBehavior::AcceptOnly)
    })
    .await;
    let error = run_load(&address, "", &Stop::never()).await.unwrap_err().to_string();
    assert!(error.contains("receiver 1 was not ready within 3 s"), "{error}");
    assert!(error.contains("503") && error.contains("not today"), "{error}");
}

// Promise: P25 - A node that never answers does not block the driver.
#[tokio::test]
async fn unanswered_pushes_do_not_block_the_run() {
    let address = serve(adversarial_node(PushBehavior::Ignore)).await;
    let began = Instant::now();
    let report = run_load(&address, "", &Stop::never()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    assert_eq!(answers(&report), [("no answer".to_owned(), sent(&report))]);
    assert!(!report.good, "{}", report.verdict);
}

#[tokio::test]
async fn unreadable_answers_count_as_broken_off() {
    let address = serve(adversarial_node(PushBehavior::Garbage)).await;
    let report = run_load(&address, "", &Stop::never()).await.unwrap();
    assert_eq!(answers(&report), [("broken off".to_owned(), sent(&report))]);
    assert!(!report.phases[0].answers[0].example.is_empty());
}

// Promise: P25 - A node that accepts messages and delivers none is reported.
#[tokio::test]
async fn accepted_but_undelivered_messages_fail_the_run() {
    let address = serve(adversarial_node(PushBehavior::AcceptOnly)).await;
    let report = run_load(&address, "", &Stop::never()).await.unwrap();
    let (sent, phase) = (sent(&report), &report.phases[0]);
    let delivery = &phase.receivers[0];
    assert_eq!((phase.accepted, delivery.delivered, delivery.missing), (sent, 0, sent));
    let misses = format!("misses up to {sent}");
    assert!(!report.good && report.verdict.contains(&misses), "{}", report.verdict);
}

// Promise: P25 - Damaged and duplicate messages are distinguished from intact ones.
#[tokio::test]
async fn damaged_and_duplicate_messages_are_counted_separately() {
    let address = serve(adversarial_node(PushBehavior::Deliver)).await;
    let report = run_load(&address, "", &Stop::never()).await.unwrap();
    let delivery = &report.phases[0].receivers[0];
    let intact = sent(&report) - 1;
    assert_eq!((delivery.delivered, delivery.missing), (intact, 1), "{}", report.text());
    assert_eq!((delivery.double, delivery.damaged), (1, 1));
    assert!(!report.good);
}

#[tokio::test]
async fn lost_node_without_known_process_ends_the_run() {
    let gone_at = Some(Instant::now() + Duration::from_secs(4));
    let address =
        serve(AdversarialNode { gone_at, ..adversarial_node(PushBehavior::Deliver) }).await;
    let began = Instant::now();
    let report = run_load(&address, "--phase 60", &Stop::never()).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(report.phases[0].cut_short && !report.nodes[0].reached_in_the_end);
    assert!(
        !report.good && report.verdict.contains("no client was connected"),
        "{}",
        report.verdict
    );
    assert!(!report.connections_lost.is_empty());
}

#[tokio::test]
async fn stop_during_a_phase_reports_partial_figures() {
    let address = serve(adversarial_node(PushBehavior::AcceptOnly)).await;
    let (stop_tx, stop) = Stop::new();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(4)).await;
        stop_tx.send_replace(true);
    });
    let began = Instant::now();
    let report = run_load(&address, "--phase 60", &stop).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let phase = &report.phases[0];
    assert!(report.interrupted && phase.cut_short && phase.seconds < 10.0);
    assert!(phase.accepted > 0 && phase.accepted == phase.sent, "{}", report.text());
    assert!(report.verdict.contains("ended early"), "{}", report.verdict);
}

#[tokio::test]
async fn silent_or_invalid_peer_times_out() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let noisy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = |listener: &tokio::net::TcpListener| -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{}", listener.local_addr().unwrap().port()).parse().unwrap()
    };
    let (silence, noise) = (address(&silent), address(&noisy));
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = silent.accept().await {
            held.push(socket);
        }
    });
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = noisy.accept().await {
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    for (address, words) in [(silence, "has not answered"), (noise, "dialling")] {
        let error =
            run_load(&address, "--timeout 2", &Stop::never()).await.unwrap_err().to_string();
        assert!(error.contains("was not ready within 2 s"), "{error}");
        assert!(error.contains(words), "{error}");
    }
}
