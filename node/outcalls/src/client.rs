//! One request to one server: connection, TLS, and the response within its bounds.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    body::{Body as _, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use ic_management_canister_types::{HttpHeader, HttpRequestResult};
use rustls::{ClientConfig, RootCertStore, client::Resumption};
use rustls_pki_types::ServerName;
use state::Outcall;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    task::spawn_blocking,
    time::timeout,
};
use tokio_rustls::TlsConnector;
use url::Host;

use crate::{
    AccessPolicy, Failure,
    addresses::is_allowed,
    reply::{HEADERS_MAX, body_bytes_max},
    semaphore::{CanisterPermit, CanisterSemaphore},
    target::{Target, prepare},
};

/// Bytes of a response that are read before its headers are complete.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 4;
/// Names that are resolved at once, one of each canister: the system's resolver holds a thread for
/// as long as it takes.
const RESOLVING_MAX: usize = 8;
const RESOLVE_TIME: Duration = Duration::from_secs(5);
/// Time for one address to accept.
const CONNECT_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Error)]
pub(crate) enum Error {
    /// An answer.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// This machine's, and no answer.
    #[error("{0}")]
    Trouble(io::Error),
}

/// Makes requests. Clones share their configuration.
#[derive(Clone)]
pub struct Client {
    tls: TlsConnector,
    allowed: Arc<AccessPolicy>,
    resolver_permits: CanisterSemaphore,
    has_refused: Arc<AtomicBool>,
}

impl Client {
    /// A client that trusts the authorities built in, and those that are allowed.
    ///
    /// # Errors
    /// When an authority's certificate cannot be used.
    pub fn new(allowed: AccessPolicy) -> Result<Self, String> {
        let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
        for certificate in &allowed.roots {
            roots.add(certificate.clone()).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.resumption = Resumption::disabled();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            allowed: Arc::new(allowed),
            resolver_permits: CanisterSemaphore::new(RESOLVING_MAX),
            has_refused: Arc::default(),
        })
    }

    /// The log shows the first refusal with the setting: canisters can cause many.
    fn log_refusal(&self, target: &Target) {
        let (server, setting) = (target.name(), self.allowed.setting);
        if self.has_refused.swap(true, Ordering::Relaxed) {
            tracing::debug!(server, "an outcall was refused: the server has no public address");
        } else {
            tracing::warn!(
                server,
                setting,
                "an outcall was refused: the server has no public address, and the setting does \
                 not allow its network"
            );
        }
    }

    /// Makes the request, and reads the response. Ends by itself, in this time after the wait for a
    /// permit of the resolver: waits for others are not a property of the server.
    pub(crate) async fn send_request(
        &self,
        outcall: &Outcall,
        time: Duration,
    ) -> Result<HttpRequestResult, Error> {
        let (target, request) = prepare(outcall, self.allowed.http)?;
        let permit = match &target.host {
            Host::Domain(_) => Some(self.resolver_permits.acquire(outcall.caller()).await),
            Host::Ipv4(_) | Host::Ipv6(_) => None,
        };
        let asked = self.exchange((&target, permit), request, outcall.response_bytes_max());
        timeout(time, asked).await.unwrap_or(Err(Failure::Time.into()))
    }

    async fn exchange(
        &self,
        (target, permit): (&Target, Option<CanisterPermit>),
        request: Request<Full<Bytes>>,
        bytes_max: u64,
    ) -> Result<HttpRequestResult, Error> {
        let stream = self.connect(target, permit).await?;
        if !target.is_tls {
            return exchange_http(stream, target, request, bytes_max).await;
        }
        let name = match &target.host {
            Host::Domain(name) => ServerName::try_from(name.clone()),
            Host::Ipv4(address) => Ok(ServerName::IpAddress((*address).into())),
            Host::Ipv6(address) => Ok(ServerName::IpAddress((*address).into())),
        };
        let name = name.map_err(|_| Failure::Url)?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| {
            tracing::debug!(
                server = target.name(),
                %error,
                "an outcall failed in its TLS handshake"
            );
            Failure::Tls(target.name())
        })?;
        exchange_http(stream, target, request, bytes_max).await
    }

    /// The addresses of a name, as the system has them.
    async fn resolve(
        name: &str,
        port: u16,
        permit: Option<CanisterPermit>,
    ) -> io::Result<Vec<SocketAddr>> {
        let name = name.to_owned();
        // If the caller no longer waits, the thread runs to its end, and keeps its permit until
        // then.
        let found = spawn_blocking(move || {
            let _permit = permit;
            (name.as_str(), port).to_socket_addrs().map(Iterator::collect)
        });
        match timeout(RESOLVE_TIME, found).await {
            Ok(found) => found.map_err(io::Error::other)?,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Connects to a checked address, IPv6 first.
    async fn connect(
        &self,
        target: &Target,
        permit: Option<CanisterPermit>,
    ) -> Result<TcpStream, Error> {
        let failed = |error: io::Error| {
            tracing::debug!(server = target.name(), %error, "an outcall cannot connect");
            if is_local_shortage(&error) {
                Error::Trouble(error)
            } else {
                Failure::Connect(target.name()).into()
            }
        };
        let mut found: Vec<SocketAddr> = match &target.host {
            Host::Domain(name) => Self::resolve(name, target.port, permit).await.map_err(failed)?,
            Host::Ipv4(address) => vec![(*address, target.port).into()],
            Host::Ipv6(address) => vec![(*address, target.port).into()],
        };
        let any = !found.is_empty();
        found.retain(|address| is_allowed(address.ip(), &self.allowed.networks));
        if any && found.is_empty() {
            self.log_refusal(target);
            return Err(Failure::Address(target.name(), self.allowed.advice).into());
        }
        found.sort_by_key(SocketAddr::is_ipv4);
        let mut last = Failure::Connect(target.name()).into();
        for address in found.into_iter().take(ADDRESSES_MAX) {
            match timeout(CONNECT_TIME, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = failed(error),
                Err(_) => {}
            }
        }
        Err(last)
    }
}

/// Whether the error is a shortage of this machine, independent of the server.
fn is_local_shortage(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let own = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|number| own.contains(&number))
}

async fn exchange_http(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &Target,
    request: Request<Full<Bytes>>,
    bytes_max: u64,
) -> Result<HttpRequestResult, Error> {
    let failed = |error: hyper::Error| {
        tracing::debug!(server = target.name(), %error, "an outcall failed");
        if error.is_parse_too_large() {
            Error::from(Failure::Headers)
        } else {
            Failure::Http(target.name()).into()
        }
    };
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(READ_BUFFER_BYTES)
        .max_headers(2 * HEADERS_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    tokio::pin!(connection);
    let exchange = async {
        let response = sender.send_request(request).await.map_err(failed)?;
        read(response, bytes_max, failed).await
    };
    tokio::pin!(exchange);
    // The connection is driven here, so that it ends with the request, however that ends.
    let mut is_open = true;
    loop {
        tokio::select! {
            biased;
            done = &mut exchange => return done,
            _ = &mut connection, if is_open => is_open = false,
        }
    }
}

async fn read(
    response: Response<Incoming>,
    bytes_max: u64,
    failed: impl Fn(hyper::Error) -> Error,
) -> Result<HttpRequestResult, Error> {
    let (head, mut body) = response.into_parts();
    let headers = headers(&head.headers)?;
    let left = body_bytes_max(&headers, bytes_max)?;
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    // As much as the server announces; else it grows, to no more than there may be.
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    if announced.is_some_and(|announced| announced > left) {
        return Err(Failure::BodyBytes(bytes_max).into());
    }
    let mut bytes = Vec::new();
    bytes.reserve_exact(announced.unwrap_or_default());
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(&failed)?.into_data() else { continue };
        if data.len() > left - bytes.len() {
            return Err(Failure::BodyBytes(bytes_max).into());
        }
        if data.len() > bytes.capacity() - bytes.len() {
            let wanted = (2 * bytes.capacity()).clamp(bytes.len() + data.len(), left);
            bytes.reserve_exact(wanted - bytes.len());
        }
        bytes.extend_from_slice(&data);
    }
    bytes.shrink_to_fit();
    Ok(HttpRequestResult { status: head.status.as_u16().into(), headers, body: bytes })
}

/// As the canister reads them. How many there are, and how large, is bounded by what is read.
fn headers(from: &hyper::HeaderMap) -> Result<Vec<HttpHeader>, Failure> {
    let header = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        let value = str::from_utf8(value.as_bytes()).map_err(|_| Failure::HeaderText)?;
        Ok(HttpHeader { name: name.as_str().to_owned(), value: value.to_owned() })
    };
    from.iter().map(header).collect()
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
