//! A server that does not keep to HTTP: what it does is in the path of the request.

use std::time::Duration;

use anyhow::Result;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

/// Ways to answer.
pub(super) const MANNERS: u32 = 9;
/// For a request, and for an answer that never ends.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections served at once.
const CONNECTIONS_MAX: usize = 64;

/// Listens; the port, and what serves until it is dropped.
pub(super) async fn start() -> Result<(u16, impl Future<Output = ()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let serve = async move {
        let mut served = tokio::task::JoinSet::new();
        loop {
            if served.len() >= CONNECTIONS_MAX {
                served.join_next().await;
            }
            if let Ok((stream, _)) = listener.accept().await {
                served.spawn(async { drop(timeout(PATIENCE, answer(stream)).await) });
            }
        }
    };
    Ok((port, serve))
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 2_048];
    let read = stream.read(&mut bytes).await?;
    let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
    let manner = text.split('/').nth(1).and_then(|manner| manner.parse::<u32>().ok());
    match manner.unwrap_or_default() % MANNERS {
        0 => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?,
        // Silence, then the end.
        1 => sleep(PATIENCE).await,
        2 => stream.write_all(&[0xff; 3_000]).await?,
        // Headers without an end.
        3 => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            loop {
                stream.write_all(b"x-header: and its value\r\n").await?;
            }
        }
        4 => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", u64::MAX);
            stream.write_all(head.as_bytes()).await?;
            loop {
                stream.write_all(&[b'x'; 4_096]).await?;
            }
        }
        // Slower than any timeout.
        5 => {
            for byte in b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n".iter().cycle() {
                stream.write_all(&[*byte]).await?;
                sleep(Duration::from_millis(300)).await;
            }
        }
        6 => {
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await?;
            stream.write_all(b"ffffffffffffffff\r\nxxxx").await?;
        }
        7 => stream.write_all(b"HTTP/1.1 302 Found\r\nlocation: /0/\r\n\r\n").await?,
        // Something else each time: members cannot agree.
        _ => {
            let port = stream.peer_addr()?.port();
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{port:05}");
            stream.write_all(text.as_bytes()).await?;
        }
    }
    stream.shutdown().await
}
