#![allow(clippy::unwrap_used)]

use rcgen::{BasicConstraints, CertificateParams, CertifiedKey, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, pem::PemObject as _};
use state::{Origin, OutcallMethod, Time};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::mpsc,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::certificates;

const TIME: Duration = Duration::from_secs(20);

/// A server that sends every client the same response, and reports the requests it got.
struct Server {
    port: u16,
    requests_rx: mpsc::Receiver<String>,
}

/// Reads a request up to its body, answers, and closes, or waits forever if it is not to close.
async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    says: Vec<u8>,
    closes: bool,
) -> String {
    let mut asked = Vec::new();
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await.unwrap_or(0) == 0 {
            break;
        }
        asked.push(byte[0]);
    }
    // The client may have heard enough before the end.
    let _ = stream.write_all(&says).await;
    let _ = stream.flush().await;
    if closes {
        let _ = stream.shutdown().await;
    } else {
        std::future::pending::<()>().await;
    }
    String::from_utf8(asked).unwrap()
}

async fn serve(says: impl Into<Vec<u8>>, closes: bool, tls: Option<TlsAcceptor>) -> Server {
    let says = says.into();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (requests_tx, requests_rx) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (says, tls, requests_tx) = (says.clone(), tls.clone(), requests_tx.clone());
            tokio::spawn(async move {
                let heard = match tls {
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => talk(stream, says, closes).await,
                        Err(error) => error.to_string(),
                    },
                    None => talk(stream, says, closes).await,
                };
                let _ = requests_tx.send(heard).await;
            });
        }
    });
    Server { port, requests_rx }
}

fn outcall(url: String) -> Outcall {
    Outcall {
        origin: Origin::System,
        cycles: 0,
        url,
        method: OutcallMethod::Get,
        headers: vec![],
        body: vec![],
        response_bytes_asked: Some(1_000),
        transform: None,
        until: Time(1),
        askers: state::Askers::All,
        height: state::Height(1),
    }
}

fn client(networks: &[&str], roots: &[u8]) -> Client {
    let networks = networks.iter().map(|text| text.parse().unwrap()).collect();
    let roots = if roots.is_empty() { vec![] } else { certificates(roots).unwrap() };
    Client::new(AccessPolicy { http: true, networks, roots, ..AccessPolicy::default() }).unwrap()
}

fn local() -> Client {
    client(&["127.0.0.0/8"], b"")
}

async fn plain(says: impl Into<Vec<u8>>) -> Result<HttpRequestResult, Failure> {
    let server = serve(says, true, None).await;
    ask(&local(), &outcall(format!("http://127.0.0.1:{}/", server.port))).await
}

async fn ask(client: &Client, outcall: &Outcall) -> Result<HttpRequestResult, Failure> {
    match client.send_request(outcall, TIME).await {
        Ok(response) => Ok(response),
        Err(Error::Failed(failure)) => Err(failure),
        Err(Error::Trouble(error)) => panic!("{error}"),
    }
}

fn response(head: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn a_response_comes_as_the_server_sent_it() {
    let gzip = [0x1f, 0x8b, 0xff, 0x00];
    let got = plain(response("404 Not Found\r\nContent-Encoding: gzip\r\nX-A: ä", &gzip)).await;
    let got = got.unwrap();
    assert_eq!((got.status, got.body), (404_u16.into(), gzip.to_vec()));
    let header =
        |name: &str| got.headers.iter().find(|it| it.name == name).map(|it| it.value.as_str());
    assert_eq!((header("content-encoding"), header("x-a")), (Some("gzip"), Some("ä")));
    // Redirects are not followed.
    let moved = plain(response("302 Found\r\nLocation: http://10.0.0.1/", b"")).await.unwrap();
    assert_eq!(moved.status, 302_u16);
    // In pieces, and until the connection closes.
    let pieces =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
    assert_eq!(plain(pieces).await.unwrap().body, b"abcde");
    assert_eq!(plain("HTTP/1.1 200 OK\r\n\r\nrest").await.unwrap().body, b"rest");
}

#[tokio::test]
async fn request_has_the_canisters_method_headers_and_body() {
    let mut server = serve(response("200 OK", b""), true, None).await;
    let mut outcall = outcall(format!("http://127.0.0.1:{}/path?q=1", server.port));
    outcall.method = OutcallMethod::Post;
    outcall.headers = vec![("X-Own".into(), "yes".into())];
    outcall.body = b"body".to_vec();
    ask(&local(), &outcall).await.unwrap();
    let asked = server.requests_rx.recv().await.unwrap().to_lowercase();
    assert!(asked.starts_with("post /path?q=1 http/1.1\r\n"), "{asked}");
    let host = format!("host: 127.0.0.1:{}\r\n", server.port);
    for line in ["x-own: yes\r\n", "content-length: 4\r\n", "user-agent: ic/1.0\r\n", &host] {
        assert!(asked.contains(line), "{line} in {asked}");
    }
}

// Promise: P12 - A response beyond its bound, headers included, is cut off while it is read.
#[tokio::test]
async fn a_response_is_cut_off_where_it_is_too_much() {
    // 18 bytes of the header are part of it: 14 of its name, 3 of its value.
    let fits = plain(response("200 OK", &[7; 983])).await.unwrap();
    assert_eq!(fits.body.len(), 983);
    assert_eq!(plain(response("200 OK", &[7; 984])).await, Err(Failure::BodyBytes(1_000)));
    let headers = format!("200 OK\r\nx: {}", "v".repeat(1_000));
    assert_eq!(plain(response(&headers, b"")).await, Err(Failure::HeaderBytes(1_000)));
    let many = format!("200 OK{}", "\r\nx: 1".repeat(64));
    assert_eq!(plain(response(&many, b"")).await, Err(Failure::Headers));
    let very_many = format!("200 OK{}", "\r\nx: 1".repeat(5_000));
    assert_eq!(plain(response(&very_many, b"")).await, Err(Failure::Headers));
    let long = format!("200 OK\r\nx: {}", "v".repeat(9_000));
    assert_eq!(plain(response(&long, b"")).await, Err(Failure::Headers));
    // Headers without end are not read to it.
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "v".repeat(10 << 20));
    assert_eq!(plain(endless).await, Err(Failure::Headers));
    let no_text = [b"HTTP/1.1 200 OK\r\nx: \xff\r\ncontent-length: 0\r\n\r\n".as_slice()].concat();
    assert_eq!(plain(no_text).await, Err(Failure::HeaderText));
}

#[tokio::test]
async fn a_body_without_end_is_cut_off() {
    let says = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &[7; 2_000]].concat();
    let server = serve(says, false, None).await;
    let outcall = outcall(format!("http://127.0.0.1:{}/", server.port));
    assert_eq!(ask(&local(), &outcall).await, Err(Failure::BodyBytes(1_000)));
}

#[tokio::test]
async fn client_distinguishes_malformed_truncated_and_late_responses() {
    for nonsense in ["", "nonsense\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort"] {
        assert!(matches!(plain(nonsense).await, Err(Failure::Http(_))), "{nonsense}");
    }
    let server = serve("HTTP/1.1 200 OK\r\n", false, None).await;
    let slow = outcall(format!("http://127.0.0.1:{}/", server.port));
    let ended = local().send_request(&slow, Duration::from_millis(200)).await;
    assert!(matches!(ended, Err(Error::Failed(Failure::Time))));
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let nobody = outcall(format!("http://{nobody}/"));
    assert!(matches!(ask(&local(), &nobody).await, Err(Failure::Connect(_))));
    let unknown = outcall("http://no-such-name.invalid/".into());
    assert!(matches!(ask(&local(), &unknown).await, Err(Failure::Connect(_))));
}

// Promise: P12 - Non-public addresses are refused after resolution, by name and by number.
#[tokio::test]
async fn addresses_that_are_not_public_are_refused_by_name_and_by_number() {
    let mut server = serve(response("200 OK", b""), true, None).await;
    let port = server.port;
    let refusing = client(&[], b"");
    for host in
        ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f000001", "2130706433", "127.1"]
    {
        let outcall = outcall(format!("http://{host}:{port}/"));
        let refused = ask(&refusing, &outcall).await;
        assert!(matches!(refused, Err(Failure::Address(..))), "{host}: {refused:?}");
    }
    assert!(server.requests_rx.try_recv().is_err(), "nobody connected");
    ask(&local(), &outcall(format!("http://localhost:{port}/"))).await.unwrap();
}

/// An authority, and what a server needs that it signed for these names.
fn authority(names: &[&str]) -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key_pair = KeyPair::generate().unwrap();
    let ca = CertifiedKey { cert: params.self_signed(&key_pair).unwrap(), key_pair };
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(names).unwrap().signed_by(&key, &ca.cert, &ca.key_pair).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    (ca.cert.pem(), TlsAcceptor::from(Arc::new(config)))
}

// Promise: P12 - A server needs a certificate of a known authority for its name.
#[tokio::test]
async fn certificates_count_by_authority_and_name() {
    let (pem, acceptor) = authority(&["localhost"]);
    let server = serve(response("200 OK", b"secret"), true, Some(acceptor)).await;
    let at = |host: &str| outcall(format!("https://{host}:{}/", server.port));
    let trusting = client(&["127.0.0.0/8"], pem.as_bytes());
    assert_eq!(ask(&trusting, &at("localhost")).await.unwrap().body, b"secret");
    // Another name than the certificate's.
    assert!(matches!(ask(&trusting, &at("127.0.0.1")).await, Err(Failure::Tls(_))));
    // Another authority, and none but those built in.
    let (other, _) = authority(&["localhost"]);
    let others = client(&["127.0.0.0/8"], other.as_bytes());
    assert!(matches!(ask(&others, &at("localhost")).await, Err(Failure::Tls(_))));
    assert!(matches!(ask(&local(), &at("localhost")).await, Err(Failure::Tls(_))));
    // A server that does not speak TLS.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = plain.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = plain.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        std::future::pending::<()>().await;
    });
    let plain = outcall(format!("https://localhost:{port}/"));
    assert!(matches!(ask(&trusting, &plain).await, Err(Failure::Tls(_))));
}

#[test]
fn certificates_rejects_a_file_without_any() {
    assert!(certificates(b"").is_err() && certificates(b"nonsense").is_err());
    let broken = b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    assert!(certificates(broken).is_err());
    let (pem, _) = authority(&["a.example"]);
    assert_eq!(certificates(format!("{pem}{pem}").as_bytes()).map(|all| all.len()), Ok(2));
}

#[tokio::test]
async fn request_timeout_starts_after_the_resolver_permit() {
    let client = local();
    let caller = outcall(String::new()).caller();
    let permit = client.resolver_permits.acquire(caller).await;
    let outcall = outcall("https://localhost:1/".into());
    let asked = client.send_request(&outcall, Duration::from_millis(1));
    let told = timeout(Duration::from_millis(200), asked).await;
    assert!(told.is_err(), "it waits, and has no result: {told:?}");
    drop(permit);
    assert!(client.send_request(&outcall, Duration::from_millis(1)).await.is_err());
}

#[tokio::test]
async fn the_memory_of_a_body_is_as_large_as_the_body() {
    let body = vec![7; 700];
    let got = plain(response("200 OK", &body)).await.unwrap();
    assert_eq!((got.body.len(), got.body.capacity()), (700, 700));
    let pieces =
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n";
    let got = plain(pieces).await.unwrap();
    assert_eq!((got.body.as_slice(), got.body.capacity()), (&b"abcdefg"[..], 7));
}
