//! One JSON-RPC call to one Ethereum RPC server, over HTTP/1.1 with or without TLS.
//!
//! The URL of such a server often contains a key: in its path, its query or as a user. Nothing here
//! shows more of it than scheme, host and port, and texts of the server are shown without the parts
//! of the URL that they repeat.
//!
//! Bounds: a call takes [`relay_limits::RootsLimits::request_millis`], its response
//! `response_bytes`, the head of the response [`HEAD_BYTES`]; a connection serves one call. One
//! name is resolved at a time. Redirects are failures: they would lead the key elsewhere.
//!
//! It must never know what is asked, nor how often.

use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, USER_AGENT},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore, client::Resumption};
use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

/// Bytes of a response that are read before its headers are complete.
const HEAD_BYTES: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
const URL_BYTES_MAX: usize = 2048;
/// Characters of a server's error message that are shown.
const MESSAGE_CHARS_MAX: usize = 200;
/// Parts of a URL that a server's text may repeat although they are shorter than a key.
const SECRET_BYTES_MIN: usize = 8;
const AGENT: &str = concat!("thimble-relay/", env!("CARGO_PKG_VERSION"));
/// The identifier of every request: a connection serves one.
const ID: u64 = 1;

/// URL of a server as the operator wrote it. Shown without its secrets; only serialization, which
/// makes a configuration file, has the whole.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct RpcUrl(String);

impl From<String> for RpcUrl {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for RpcUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match RpcServer::new(self) {
            Ok(server) => formatter.write_str(server.name()),
            Err(_) => formatter.write_str("an invalid URL"),
        }
    }
}

impl RpcUrl {
    /// The whole text, for a configuration file.
    pub(crate) fn secret_text(&self) -> &str {
        &self.0
    }
}

/// Why a URL is not one of a server. Never contains the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum UrlError {
    #[error("invalid URL: {0}")]
    Syntax(#[from] url::ParseError),
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    #[error("the scheme must be https or http; servers of ws and wss URLs have an https one, too")]
    Scheme,
    #[error("the URL names no host")]
    Host,
    #[error("user or password of the URL are not text")]
    User,
}

/// Why a call gave no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RpcError {
    #[error("cannot connect: {0}")]
    Connect(String),
    #[error("TLS failed: {0}")]
    Tls(String),
    #[error("no answer within roots.request_millis ({0})")]
    Timeout(u128),
    #[error("HTTP failed: {0}")]
    Http(String),
    #[error("status {0}")]
    Status(u16),
    #[error("the response is larger than roots.response_bytes ({0})")]
    TooLarge(usize),
    #[error("the response is not one of JSON-RPC 2.0")]
    Malformed,
    #[error("error {code}: {message}")]
    Refused { code: i64, message: String },
}

/// Bounds of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallLimits {
    pub(crate) time: Duration,
    pub(crate) response_bytes: usize,
}

/// A server, from its URL.
pub(crate) struct RpcServer {
    name: String,
    is_tls: bool,
    host: Host<String>,
    port: u16,
    path: String,
    authority: HeaderValue,
    authorization: Option<HeaderValue>,
    /// Parts of the URL that are not shown.
    secrets: Vec<String>,
}

impl fmt::Debug for RpcServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)
    }
}

impl RpcServer {
    /// Errors: the URL is not http or https, has no host, or is too long.
    pub(crate) fn new(url: &RpcUrl) -> Result<Self, UrlError> {
        if url.0.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong);
        }
        let url = Url::parse(&url.0)?;
        let is_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(UrlError::Scheme),
        };
        let host = url.host().ok_or(UrlError::Host)?.to_owned();
        let port = url.port_or_known_default().ok_or(UrlError::Host)?;
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_string(),
        };
        let path = match url.query() {
            Some(query) => format!("{}?{query}", url.path()),
            None => url.path().to_owned(),
        };
        Ok(Self {
            name: format!("{}://{host}:{port}", url.scheme()),
            is_tls,
            host,
            port,
            path,
            authority: HeaderValue::from_str(&authority).map_err(|_| UrlError::Host)?,
            authorization: authorization(&url)?,
            secrets: secrets(&url),
        })
    }

    /// Scheme, host and port: all of the URL that is ever shown.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether what it answers can be changed on its way.
    pub(crate) fn is_exposed(&self) -> bool {
        let is_local = match &self.host {
            Host::Ipv4(ip) => ip.is_loopback(),
            Host::Ipv6(ip) => ip.is_loopback(),
            Host::Domain(name) => name == "localhost",
        };
        !self.is_tls && !is_local
    }

    /// A server's text without the secrets of the URL and without control characters.
    fn shown(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret.as_str(), "***");
        }
        text.chars().filter(|one| !one.is_control()).take(MESSAGE_CHARS_MAX).collect()
    }

    fn request(&self, method: &str, params: &Value) -> Result<Request<Full<Bytes>>, RpcError> {
        let call = json!({ "jsonrpc": "2.0", "id": ID, "method": method, "params": params });
        let mut request = Request::post(self.path.as_str())
            .header(HOST, self.authority.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .header(USER_AGENT, AGENT);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let body = Full::new(Bytes::from(call.to_string()));
        request.body(body).map_err(|_| RpcError::Http("the URL makes no request".to_owned()))
    }
}

/// User and password of a URL, for the header.
fn authorization(url: &Url) -> Result<Option<HeaderValue>, UrlError> {
    let (user, password) = (url.username(), url.password());
    if user.is_empty() && password.is_none() {
        return Ok(None);
    }
    let mut pair = percent_decoded(user);
    pair.push(b':');
    pair.extend(percent_decoded(password.unwrap_or_default()));
    let text = format!("Basic {}", BASE64_STANDARD.encode(pair));
    let mut value = HeaderValue::from_str(&text).map_err(|_| UrlError::User)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Bytes of a part of a URL; an invalid escape stands for itself.
fn percent_decoded(text: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = if *first == b'%' { tail.get(..2) } else { None };
        let mut byte = [0_u8; 1];
        match escaped {
            Some(digits) if hex::decode_to_slice(digits, &mut byte).is_ok() => {
                decoded.push(byte[0]);
                rest = &tail[2..];
            }
            _ => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    decoded
}

/// Parts of a URL that may be a key, as they are written and as they are meant.
fn secrets(url: &Url) -> Vec<String> {
    let user = [Some(url.username()), url.password()].into_iter().flatten();
    let user = user.filter(|part| !part.is_empty()).map(str::to_owned);
    let path = url.path_segments().into_iter().flatten().map(str::to_owned);
    let query = url.query_pairs().map(|(_, value)| value.into_owned());
    let long = path.chain(query).filter(|part| part.len() >= SECRET_BYTES_MIN);
    let written: Vec<String> = user.chain(long).collect();
    let meant = written.iter().map(|part| String::from_utf8_lossy(&percent_decoded(part)).into());
    let mut all: Vec<String> = meant.collect();
    all.extend(written);
    // A part that contains another one is replaced first.
    all.sort_by_key(|part| std::cmp::Reverse(part.len()));
    all.dedup();
    all
}

/// A response to a call.
#[derive(Deserialize)]
struct Reply {
    id: Value,
    result: Option<String>,
    error: Option<Fault>,
}

#[derive(Deserialize)]
struct Fault {
    code: i64,
    #[serde(default)]
    message: String,
}

/// The result of a response, which is always a text in the calls made here.
fn result(server: &RpcServer, body: &[u8]) -> Result<String, RpcError> {
    let reply: Reply = serde_json::from_slice(body).map_err(|_| RpcError::Malformed)?;
    match reply {
        // A server that could not read the request answers without its identifier.
        Reply { error: Some(Fault { code, message }), .. } => {
            Err(RpcError::Refused { code, message: server.shown(&message) })
        }
        Reply { id, result: Some(result), error: None } if id == json!(ID) => Ok(result),
        _ => Err(RpcError::Malformed),
    }
}

/// Makes calls, one after the other.
pub(crate) struct RpcClient {
    limits: CallLimits,
    tls: TlsConnector,
    /// One name at a time: a resolver that hangs takes one thread.
    resolving: Arc<Semaphore>,
}

impl RpcClient {
    /// A client that trusts the authorities built in.
    ///
    /// Errors: those of the cryptographic provider.
    pub(crate) fn new(limits: CallLimits) -> Result<Self, rustls::Error> {
        let roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let resolving = Arc::new(Semaphore::new(1));
        Ok(Self { limits, tls: TlsConnector::from(Arc::new(config)), resolving })
    }

    /// The result of a call, a text.
    pub(crate) async fn call(
        &self,
        server: &RpcServer,
        method: &str,
        params: Value,
    ) -> Result<String, RpcError> {
        let request = server.request(method, &params)?;
        let exchange = self.exchange(server, request);
        let answered = timeout(self.limits.time, exchange).await;
        let body = answered.unwrap_or(Err(RpcError::Timeout(self.limits.time.as_millis())))?;
        result(server, &body)
    }

    async fn exchange(
        &self,
        server: &RpcServer,
        request: Request<Full<Bytes>>,
    ) -> Result<Vec<u8>, RpcError> {
        let stream = self.connect(server).await?;
        if !server.is_tls {
            return self.exchange_http(stream, request).await;
        }
        let name = match &server.host {
            Host::Domain(name) => ServerName::try_from(name.clone())
                .map_err(|_| RpcError::Tls("the host is no DNS name".to_owned()))?,
            Host::Ipv4(address) => ServerName::IpAddress((*address).into()),
            Host::Ipv6(address) => ServerName::IpAddress((*address).into()),
        };
        let stream = self.tls.connect(name, stream).await;
        let stream = stream.map_err(|error| RpcError::Tls(error.to_string()))?;
        self.exchange_http(stream, request).await
    }

    async fn connect(&self, server: &RpcServer) -> Result<TcpStream, RpcError> {
        let failed = |error: io::Error| RpcError::Connect(error.to_string());
        let addresses = match &server.host {
            Host::Domain(name) => self.resolve(name.clone(), server.port).await.map_err(failed)?,
            Host::Ipv4(address) => vec![(*address, server.port).into()],
            Host::Ipv6(address) => vec![(*address, server.port).into()],
        };
        let mut last = RpcError::Connect("the name has no address".to_owned());
        for address in addresses.into_iter().take(ADDRESSES_MAX) {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    // Without it the call is slower, and works.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => last = failed(error),
            }
        }
        Err(last)
    }

    /// The addresses of a name, as the system has them.
    async fn resolve(&self, name: String, port: u16) -> io::Result<Vec<SocketAddr>> {
        let Ok(permit) = self.resolving.clone().try_acquire_owned() else {
            return Err(io::Error::other("the resolver has not answered an earlier question"));
        };
        // If the caller no longer waits, the thread runs to its end, and keeps its permit until
        // then.
        let found = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), port)).map(Iterator::collect)
        });
        found.await.map_err(io::Error::other)?
    }

    async fn exchange_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        request: Request<Full<Bytes>>,
    ) -> Result<Vec<u8>, RpcError> {
        let failed = |error: hyper::Error| RpcError::Http(error.to_string());
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        tokio::pin!(connection);
        let exchange = async {
            let response = sender.send_request(request).await.map_err(failed)?;
            self.read(response).await
        };
        tokio::pin!(exchange);
        // The connection is driven here, so that it ends with the call, however that ends.
        let mut is_open = true;
        loop {
            tokio::select! {
                biased;
                done = &mut exchange => return done,
                _ = &mut connection, if is_open => is_open = false,
            }
        }
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Vec<u8>, RpcError> {
        let status = response.status();
        // Servers refuse a call with a status of 4xx and a body of JSON-RPC, or with any page.
        if status.is_redirection() || status == StatusCode::UNAUTHORIZED {
            return Err(RpcError::Status(status.as_u16()));
        }
        let most = self.limits.response_bytes;
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| RpcError::Http(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            if data.len() > most.saturating_sub(bytes.len()) {
                return Err(RpcError::TooLarge(most));
            }
            bytes.extend_from_slice(&data);
        }
        let is_reply = status.is_success() || serde_json::from_slice::<Reply>(&bytes).is_ok();
        if is_reply { Ok(bytes) } else { Err(RpcError::Status(status.as_u16())) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(url: &str) -> RpcServer {
        RpcServer::new(&RpcUrl::from(url.to_owned())).unwrap()
    }

    #[test]
    fn url_is_shown_without_user_path_and_query() {
        for (url, name) in [
            ("https://user:pa55@rpc.example/v3/0123456789abcdef", "https://rpc.example:443"),
            ("http://127.0.0.1:8545/?key=0123456789", "http://127.0.0.1:8545"),
            ("https://[::1]:1/0123456789abcdef", "https://[::1]:1"),
        ] {
            let url = RpcUrl::from(url.to_owned());
            assert_eq!(format!("{url:?}"), name);
            assert_eq!(format!("{:?}", RpcServer::new(&url).unwrap()), name);
        }
        let wrong = RpcUrl::from("https://user:pa55@:x/0123456789abcdef".to_owned());
        let shown = format!("{wrong:?} {}", RpcServer::new(&wrong).err().unwrap());
        assert!(!shown.contains("pa55") && !shown.contains("0123456789"), "{shown}");
    }

    #[test]
    fn url_of_another_kind_is_refused() {
        let refused = |url: &str| RpcServer::new(&RpcUrl::from(url.to_owned())).err().unwrap();
        assert_eq!(refused("wss://rpc.example/"), UrlError::Scheme);
        assert_eq!(refused(&format!("https://a.b/{}", "x".repeat(2048))), UrlError::TooLong);
        assert!(matches!(refused("rpc.example"), UrlError::Syntax(_)));
    }

    #[test]
    fn servers_text_is_shown_without_the_key() {
        let server = server("https://us%2Fer:pw@rpc.example/v3/0123456789abcdef?token=tokentoken");
        let text = "project 0123456789abcdef\n of us/er (us%2Fer) with pw and tokentoken, v3";
        assert_eq!(server.shown(text), "project *** of *** (***) with *** and ***, v3");
        assert_eq!(server.shown(&"x".repeat(1000)).len(), MESSAGE_CHARS_MAX);
    }

    #[test]
    fn user_and_password_are_sent_as_a_header() {
        let header = server("https://a%3Ab:c@rpc.example").authorization.unwrap();
        assert_eq!(header.to_str().unwrap(), format!("Basic {}", BASE64_STANDARD.encode("a:b:c")));
        assert!(server("https://rpc.example").authorization.is_none());
    }

    #[test]
    fn plain_http_is_exposed_unless_it_stays_on_this_machine() {
        assert!(server("http://rpc.example").is_exposed());
        assert!(server("http://192.0.2.1:8545").is_exposed());
        for url in ["https://rpc.example", "http://localhost:8545", "http://[::1]:8545"] {
            assert!(!server(url).is_exposed(), "{url}");
        }
    }

    #[test]
    fn reply_is_a_result_or_the_servers_error() {
        let server = server("http://localhost/0123456789");
        let read = |text: &str| result(&server, text.as_bytes());
        assert_eq!(read(r#"{"jsonrpc":"2.0","id":1,"result":"0x1"}"#), Ok("0x1".to_owned()));
        let refused = read(r#"{"id":null,"error":{"code":-32005,"message":"0123456789 limit"}}"#);
        let message = "*** limit".to_owned();
        assert_eq!(refused, Err(RpcError::Refused { code: -32005, message }));
        for malformed in [
            "",
            "[]",
            "null",
            r#"{"id":2,"result":"0x1"}"#,
            r#"{"id":1}"#,
            r#"{"id":1,"result":null}"#,
            r#"{"id":1,"result":{"a":1}}"#,
        ] {
            assert_eq!(read(malformed), Err(RpcError::Malformed), "{malformed}");
        }
    }

    proptest! {
        /// Whatever a server sends is a text or an error, never a panic.
        #[test]
        fn any_reply_is_answered(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = result(&server("http://localhost/"), &body);
        }

        #[test]
        fn no_url_is_shown_beyond_its_host(key in "[a-z0-9]{16,40}") {
            let url = RpcUrl::from(format!("https://x{key}:{key}@rpc.example/{key}?{key}={key}"));
            let shown = format!("{url:?}");
            prop_assert!(!shown.contains(&key));
            let server = RpcServer::new(&url).unwrap();
            let shown = server.shown(&format!("a {key} b"));
            prop_assert!(!shown.contains(&key));
        }
    }
}
