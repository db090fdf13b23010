//! The HTTP interface of a relay, asked once for each answer.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

/// Everything a relay does for a test takes less.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Answer {
    pub(crate) status: u16,
    body: String,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        &self.body
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

pub(crate) fn get(url: &str, path: &str) -> Answer {
    send(url, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

pub(crate) fn post(url: &str, path: &str, body: &serde_json::Value) -> Answer {
    send_json(url, "POST", path, body)
}

pub(crate) fn send_json(url: &str, method: &str, path: &str, body: &serde_json::Value) -> Answer {
    let body = body.to_string();
    let head = "host: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    send(
        url,
        &format!("{method} {path} HTTP/1.1\r\n{head}content-length: {}\r\n\r\n{body}", body.len()),
    )
}

fn send(url: &str, request: &str) -> Answer {
    let answer = exchange(url, request);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(!head.contains("chunked"), "only short answers are read here");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, body: body.to_owned() }
}

/// An answer of any length as it is, with its head and the heads of its chunks.
pub(crate) fn get_raw(url: &str, path: &str) -> String {
    exchange(url, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
}

fn exchange(url: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
