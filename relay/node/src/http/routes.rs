//! The routes: paths and methods.
//!
//! Paths are those of the OpenAPI files in waku-org/waku-rest-api. A topic in a path is
//! percent-encoded; since it is the last part of its path, one with plain slashes is accepted too.
//! Bounds: a head, and with it a path, is at most [`super::service::HEAD_BYTES_MAX`].

use http_server::ErrorResponse;
use hyper::{Method, StatusCode};

use super::answer;

/// An endpoint, with the parameters of its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Health,
    Info,
    Version,
    Metrics,
    Status,
    Dashboard,
    Heap,
    Peers,
    AddPeers,
    Peer(String),
    ServicePeers,
    ConnectedPeers,
    ConnectedPeersOn(u16),
    RelayPeers,
    RelayPeersOn(u16),
    MeshPeers,
    MeshPeersOn(u16),
    PeerStats,
    FilterSubscribers,
    LogLevel(String),
    LightPushLegacy,
    LightPush,
    RelaySubscribe,
    RelayUnsubscribe,
    AutoSubscribe,
    AutoUnsubscribe,
    RelayMessages(String),
    RelayPublish(String),
    AutoMessages(String),
    AutoPublish,
    FilterSubscribe,
    FilterUnsubscribe,
    FilterUnsubscribeAll,
    FilterPing(String),
    FilterMessages(String),
    StoreQuery,
}

/// The endpoint of a request. Errors: 404, 405 with the methods there are, 400 for a path that
/// cannot be decoded.
pub(crate) fn find(method: &Method, path: &str) -> Result<Route, ErrorResponse> {
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    const PUT: Method = Method::PUT;
    const DELETE: Method = Method::DELETE;
    match path {
        "/health" => one_of(method, [(GET, Route::Health)]),
        "/info" | "/debug/v1/info" => one_of(method, [(GET, Route::Info)]),
        "/version" | "/debug/v1/version" => one_of(method, [(GET, Route::Version)]),
        "/metrics" => one_of(method, [(GET, Route::Metrics)]),
        "/status.json" => one_of(method, [(GET, Route::Status)]),
        "/dashboard" => one_of(method, [(GET, Route::Dashboard)]),
        "/debug/heap" => one_of(method, [(GET, Route::Heap)]),
        "/admin/v1/peers" => one_of(method, [(GET, Route::Peers), (POST, Route::AddPeers)]),
        "/admin/v1/peers/service" => one_of(method, [(GET, Route::ServicePeers)]),
        "/admin/v1/peers/connected" => one_of(method, [(GET, Route::ConnectedPeers)]),
        "/admin/v1/peers/relay" => one_of(method, [(GET, Route::RelayPeers)]),
        "/admin/v1/peers/mesh" => one_of(method, [(GET, Route::MeshPeers)]),
        "/admin/v1/peers/stats" => one_of(method, [(GET, Route::PeerStats)]),
        "/admin/v1/filter/subscriptions" => one_of(method, [(GET, Route::FilterSubscribers)]),
        "/lightpush/v1/message" => one_of(method, [(POST, Route::LightPushLegacy)]),
        "/lightpush/v3/message" => one_of(method, [(POST, Route::LightPush)]),
        "/relay/v1/subscriptions" => {
            one_of(method, [(POST, Route::RelaySubscribe), (DELETE, Route::RelayUnsubscribe)])
        }
        "/relay/v1/auto/subscriptions" => {
            one_of(method, [(POST, Route::AutoSubscribe), (DELETE, Route::AutoUnsubscribe)])
        }
        "/relay/v1/auto/messages" => one_of(method, [(POST, Route::AutoPublish)]),
        "/filter/v2/subscriptions" => one_of(
            method,
            [
                (POST, Route::FilterSubscribe),
                (PUT, Route::FilterSubscribe),
                (DELETE, Route::FilterUnsubscribe),
            ],
        ),
        "/filter/v2/subscriptions/all" if *method == DELETE => Ok(Route::FilterUnsubscribeAll),
        "/store/v3/messages" => one_of(method, [(GET, Route::StoreQuery)]),
        _ => with_name(method, path),
    }
}

/// Paths that end in a name.
fn with_name(method: &Method, path: &str) -> Result<Route, ErrorResponse> {
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    let after = |prefix: &str| path.strip_prefix(prefix).filter(|name| !name.is_empty());
    if let Some(name) = after("/relay/v1/messages/") {
        let topic = decoded(name)?;
        let publish = Route::RelayPublish(topic.clone());
        return one_of(method, [(GET, Route::RelayMessages(topic)), (POST, publish)]);
    }
    if let Some(name) = after("/relay/v1/auto/messages/") {
        return one_of(method, [(GET, Route::AutoMessages(decoded(name)?))]);
    }
    if let Some(name) = after("/filter/v2/messages/") {
        return one_of(method, [(GET, Route::FilterMessages(decoded(name)?))]);
    }
    if let Some(name) = after("/filter/v2/subscriptions/") {
        return one_of(method, [(GET, Route::FilterPing(decoded(name)?))]);
    }
    if let Some(name) = after("/admin/v1/peer/") {
        return one_of(method, [(GET, Route::Peer(decoded(name)?))]);
    }
    if let Some(name) = after("/admin/v1/log-level/") {
        return one_of(method, [(POST, Route::LogLevel(decoded(name)?))]);
    }
    if let Some(name) = after("/admin/v1/peers/connected/on/") {
        return one_of(method, [(GET, Route::ConnectedPeersOn(shard(name)?))]);
    }
    if let Some(name) = after("/admin/v1/peers/relay/on/") {
        return one_of(method, [(GET, Route::RelayPeersOn(shard(name)?))]);
    }
    if let Some(name) = after("/admin/v1/peers/mesh/on/") {
        return one_of(method, [(GET, Route::MeshPeersOn(shard(name)?))]);
    }
    let shown: String = path.chars().take(128).collect();
    Err(answer::not_found(format!("there is nothing at {shown}")))
}

fn one_of<const N: usize>(
    method: &Method,
    routes: [(Method, Route); N],
) -> Result<Route, ErrorResponse> {
    // A load balancer may send HEAD for endpoints without side effects.
    let head = *method == Method::HEAD;
    let mut allow = String::new();
    for (allowed, route) in routes {
        let probed = head
            && matches!(
                route,
                Route::Health | Route::Version | Route::Info | Route::Metrics | Route::Dashboard
            );
        if allowed == *method || probed {
            return Ok(route);
        }
        if !allow.is_empty() {
            allow += ", ";
        }
        allow += allowed.as_str();
    }
    let message = format!("{method} is not answered here; {allow} is");
    Err(ErrorResponse {
        allow: Some(allow),
        ..answer::refusal(StatusCode::METHOD_NOT_ALLOWED, message)
    })
}

fn shard(name: &str) -> Result<u16, ErrorResponse> {
    name.parse().map_err(|_| answer::bad(format!("`{name}` is no shard: a number from 0 to 65535")))
}

fn decoded(name: &str) -> Result<String, ErrorResponse> {
    percent_decoded(name, false).ok_or_else(|| {
        answer::bad("the path is not percent-encoded UTF-8; encode a topic as a URI component")
    })
}

/// Text without its percent-encoding; `None` when it is damaged. `plus` is a space in queries of
/// forms.
pub(crate) fn percent_decoded(text: &str, plus_is_space: bool) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|byte| (byte as char).to_digit(16));
                (digit()? << 4 | digit()?) as u8
            }
            b'+' if plus_is_space => b' ',
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_found_in_paths_however_they_are_written() {
        let topic = "/waku/2/rs/16/32".to_owned();
        for path in
            ["/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32", "/relay/v1/messages//waku/2/rs/16/32"]
        {
            assert_eq!(find(&Method::GET, path).unwrap(), Route::RelayMessages(topic.clone()));
            assert_eq!(find(&Method::POST, path).unwrap(), Route::RelayPublish(topic.clone()));
        }
        assert_eq!(
            find(&Method::GET, "/filter/v2/messages/%2Fapp%2F1%2Ftägliches%2Fproto").unwrap(),
            Route::FilterMessages("/app/1/tägliches/proto".to_owned())
        );
    }

    #[test]
    fn the_word_all_is_a_request_id_when_it_is_asked_for() {
        let path = "/filter/v2/subscriptions/all";
        assert_eq!(find(&Method::DELETE, path).unwrap(), Route::FilterUnsubscribeAll);
        assert_eq!(find(&Method::GET, path).unwrap(), Route::FilterPing("all".into()));
    }

    #[test]
    fn unknown_path_and_wrong_method_errors_name_path_and_allowed_methods() {
        assert_eq!(find(&Method::GET, "/").unwrap_err().status, 404);
        assert_eq!(find(&Method::GET, "/relay/v1/messages/").unwrap_err().status, 404);
        assert_eq!(find(&Method::GET, "/store/v1/messages").unwrap_err().status, 404);
        let refused = find(&Method::PATCH, "/filter/v2/subscriptions").unwrap_err();
        assert_eq!(
            (refused.status.as_u16(), refused.allow.as_deref()),
            (405, Some("POST, PUT, DELETE"))
        );
        for path in ["/admin/v1/peers/mesh/on/65536", "/admin/v1/peer/%F", "/admin/v1/peer/%FF"] {
            assert_eq!(find(&Method::GET, path).unwrap_err().status, 400, "{path}");
        }
        assert_eq!(find(&Method::HEAD, "/health").unwrap(), Route::Health);
        let messages = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F0%2F0";
        assert_eq!(find(&Method::HEAD, messages).unwrap_err().status, 405, "reading takes them");
    }

    #[test]
    fn percent_encoding_is_undone_once() {
        assert_eq!(percent_decoded("a%252Fb+c", false).as_deref(), Some("a%2Fb+c"));
        assert_eq!(percent_decoded("a+b%2B", true).as_deref(), Some("a b+"));
        for damaged in ["%", "%2", "%zz", "%+1", "%FF"] {
            assert_eq!(percent_decoded(damaged, false), None, "{damaged}");
        }
    }
}
