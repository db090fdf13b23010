//! The page of a watch: `/` draws the data of `/status.json`.
//!
//! Bounds: connections at a time, one request on each, its head, and the time for all of it. It
//! only answers GET. On a loopback address a request has to name a loopback host: a foreign page
//! whose name was made to resolve to this address (DNS rebinding) gets nothing.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Bytes,
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::timeout,
};

use super::report::Report;

const PAGE: &str = include_str!("page.html");
/// Connections at a time; one more waits.
const CONNECTIONS_MAX: usize = 16;
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// For all of a connection, so that one that reads slowly does not keep its place.
const TIMEOUT: Duration = Duration::from_secs(20);
/// After a failed accept: descriptors may be free again by then.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The report that is shown.
#[derive(Clone, Default)]
pub(crate) struct SharedReport(Arc<Mutex<Arc<Report>>>);

impl SharedReport {
    pub(crate) fn set(&self, report: Report) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(report);
    }

    fn get(&self) -> Arc<Report> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves until the program ends. Returns the address; errors: it cannot be listened on.
pub(crate) async fn serve(address: SocketAddr, shown: SharedReport) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).await.with_context(|| {
        format!("cannot serve the page on {address}; another --listen, or --no-page")
    })?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        while let Ok(place) = places.clone().acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let shown = shown.clone();
            tokio::spawn(async move {
                // An error is the client's: it went away, was too slow or spoke no HTTP.
                let _ = timeout(TIMEOUT, connection(stream, address.ip(), shown)).await;
                drop(place);
            });
        }
    });
    Ok(address)
}

async fn connection(stream: TcpStream, ip: IpAddr, shown: SharedReport) -> hyper::Result<()> {
    let answer = service_fn(move |request| {
        let response = answer(&request, ip, &shown);
        async move { Ok::<_, Infallible>(response) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await
}

fn answer<B>(request: &Request<B>, ip: IpAddr, shown: &SharedReport) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let words =
        |status, text: &'static str| respond(status, TEXT, Bytes::from_static(text.as_bytes()));
    if ip.is_loopback() && !names_loopback(request) {
        let text = "This page is served to this machine only: the request names another host.\n";
        return words(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if request.method() != Method::GET {
        let mut response = words(StatusCode::METHOD_NOT_ALLOWED, "Only GET is answered.\n");
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    match request.uri().path() {
        "/" => {
            let mut response = respond(
                StatusCode::OK,
                "text/html; charset=utf-8",
                Bytes::from_static(PAGE.as_bytes()),
            );
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_SECURITY_POLICY, dashboard::page::policy(PAGE));
            headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
            response
        }
        "/status.json" => match serde_json::to_vec(&*shown.get()) {
            Ok(json) => respond(StatusCode::OK, "application/json", json.into()),
            Err(_) => words(StatusCode::INTERNAL_SERVER_ERROR, "The report cannot be written.\n"),
        },
        _ => words(StatusCode::NOT_FOUND, "There are / and /status.json.\n"),
    }
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Whether the request's host is this machine, by a name that no DNS owner can assign to it.
fn names_loopback<B>(request: &Request<B>) -> bool {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    let Ok(authority) = hyper::http::uri::Authority::try_from(host.as_bytes()) else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(method: Method, path: &str, hosts: &[&str], ip: &str) -> StatusCode {
        let mut request = Request::builder().method(method).uri(path);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        answer(&request.body(()).unwrap(), ip.parse().unwrap(), &SharedReport::default()).status()
    }

    // Promise: P25 - The page of a watch is served to loopback names only.
    #[test]
    fn only_get_of_two_paths_by_a_loopback_name_is_answered() {
        for host in ["127.0.0.1:80", "localhost", "LOCALHOST:1", "[::1]:9", "127.1.2.3"] {
            for path in ["/", "/status.json"] {
                assert_eq!(
                    status(Method::GET, path, &[host], "127.0.0.1"),
                    StatusCode::OK,
                    "{host}"
                );
            }
        }
        for hosts in [
            &[][..],
            &["evil.example"],
            &["127.0.0.1.evil.example"],
            &["localhost.evil.example:80"],
            &["user@evil.example"],
            &["localhost", "localhost"],
            &["10.0.0.1"],
            &[""],
        ] {
            let refused = StatusCode::MISDIRECTED_REQUEST;
            assert_eq!(status(Method::GET, "/", hosts, "127.0.0.1"), refused, "{hosts:?}");
        }
        assert_eq!(status(Method::GET, "/", &["node7.example"], "10.0.0.1"), StatusCode::OK);
        assert_eq!(
            status(Method::POST, "/", &["localhost"], "::1"),
            StatusCode::METHOD_NOT_ALLOWED
        );
        assert_eq!(
            status(Method::GET, "/etc/passwd", &["localhost"], "::1"),
            StatusCode::NOT_FOUND
        );
    }

    #[test]
    fn the_page_is_one_small_file_that_names_no_other_place() {
        assert!(PAGE.len() < 40 << 10, "the page has {} bytes", PAGE.len());
        for tag in ["script", "style"] {
            assert_eq!(
                PAGE.matches(&format!("<{tag}")).count(),
                1,
                "one {tag}, without attributes"
            );
        }
        let places = PAGE.replace("http://www.w3.org/2000/svg", "");
        for place in ["http:", "https:", "//cdn", "@import", "url(", "innerHTML", " style=\""] {
            assert!(!places.contains(place), "{place}");
        }
    }
}
