//! The routes: paths and methods, in one table, from which docs/reference/rest.md is written.
//!
//! Paths are those of the OpenAPI files in waku-org/waku-rest-api; docs/relay.md names the
//! additions to them. A topic in a path is percent-encoded; since it is the last part of its path,
//! one with plain slashes is accepted too. Bounds: a head, and with it a path, is at most
//! [`super::service::HEAD_BYTES_MAX`].

use http_server::ErrorResponse;
use hyper::{Method, StatusCode};

use super::answer;

/// An endpoint, with the parameters of its path.
#[deny(dead_code, reason = "a variant that no row of `endpoints!` makes is never served")]
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

impl Route {
    /// Whether it reads data that clients can ask for again later: such requests are the first that
    /// are refused when memory is short. Store queries are as well, and refuse and count for
    /// themselves; the operator's pages are not.
    pub(crate) fn is_read(&self) -> bool {
        match self {
            Self::Peers
            | Self::Peer(_)
            | Self::ServicePeers
            | Self::ConnectedPeers
            | Self::ConnectedPeersOn(_)
            | Self::RelayPeers
            | Self::RelayPeersOn(_)
            | Self::MeshPeers
            | Self::MeshPeersOn(_)
            | Self::PeerStats
            | Self::FilterSubscribers
            | Self::RelayMessages(_)
            | Self::AutoMessages(_)
            | Self::FilterMessages(_) => true,
            Self::Health
            | Self::Info
            | Self::Version
            | Self::Metrics
            | Self::Status
            | Self::Dashboard
            | Self::Heap
            | Self::AddPeers
            | Self::LogLevel(_)
            | Self::LightPushLegacy
            | Self::LightPush
            | Self::RelaySubscribe
            | Self::RelayUnsubscribe
            | Self::AutoSubscribe
            | Self::AutoUnsubscribe
            | Self::RelayPublish(_)
            | Self::AutoPublish
            | Self::FilterSubscribe
            | Self::FilterUnsubscribe
            | Self::FilterUnsubscribeAll
            | Self::FilterPing(_)
            | Self::StoreQuery => false,
        }
    }

    /// Whether it is served by gossip, which a client of other nodes does not have.
    pub(crate) fn is_relay(&self) -> bool {
        matches!(
            self,
            Self::RelaySubscribe
                | Self::RelayUnsubscribe
                | Self::AutoSubscribe
                | Self::AutoUnsubscribe
                | Self::RelayMessages(_)
                | Self::RelayPublish(_)
                | Self::AutoMessages(_)
                | Self::AutoPublish
        )
    }
}

/// A method and a path with their route.
pub(crate) struct Endpoint {
    pub(crate) method: Method,
    /// The last part may be a parameter, in braces.
    pub(crate) path: &'static str,
    /// Makes the route from the parameter, which is empty where there is none.
    pub(crate) route: fn(&str) -> Result<Route, ErrorResponse>,
    /// The meaning in docs/reference/rest.md, which a test writes.
    #[allow(dead_code, reason = "only a test reads it")]
    pub(crate) meaning: &'static str,
}

impl Endpoint {
    /// The parameter in `path`, empty where there is none; `None` for the path of another endpoint.
    fn parameter<'a>(&self, path: &'a str) -> Option<&'a str> {
        match self.path.split_once('{') {
            Some((prefix, _)) => path.strip_prefix(prefix).filter(|name| !name.is_empty()),
            None => (path == self.path).then_some(""),
        }
    }
}

macro_rules! endpoints {
    ($($method:ident $path:literal => $route:expr, $meaning:literal;)+) => {
        /// All endpoints.
        pub(crate) static ENDPOINTS: &[Endpoint] = &[$(
            Endpoint {
                method: Method::$method,
                path: $path,
                route: $route,
                meaning: $meaning,
            },
        )+];
    };
}

endpoints! {
    GET "/health" => |_| Ok(Route::Health),
        "the health of each protocol, with the reason where one is not ready";
    GET "/info" => |_| Ok(Route::Info),
        "addresses and record of this node";
    GET "/debug/v1/info" => |_| Ok(Route::Info),
        "the same";
    GET "/version" => |_| Ok(Route::Version),
        "name and version of the program";
    GET "/debug/v1/version" => |_| Ok(Route::Version),
        "the same";
    GET "/metrics" => |_| Ok(Route::Metrics),
        "metrics in the format of OpenMetrics";
    GET "/status.json" => |_| Ok(Route::Status),
        "the status report that `thimble-relay status` prints";
    GET "/dashboard" => |_| Ok(Route::Dashboard),
        "the page that draws the status report";
    GET "/debug/heap" => |_| Ok(Route::Heap),
        "sampled allocations as addresses; 404 without `--heap-profile`";
    GET "/admin/v1/peers" => |_| Ok(Route::Peers),
        "connected peers, then known peers that are not connected";
    POST "/admin/v1/peers" => |_| Ok(Route::AddPeers),
        "connects to up to 16 addresses, and keeps connecting; 200 when all are connected";
    GET "/admin/v1/peers/service" => |_| Ok(Route::ServicePeers),
        "connected peers that speak a protocol of Waku which is a service";
    GET "/admin/v1/peers/connected" => |_| Ok(Route::ConnectedPeers),
        "connected peers";
    GET "/admin/v1/peers/connected/on/{shardId}" => |id| shard(id).map(Route::ConnectedPeersOn),
        "connected peers subscribed to one shard, as a list";
    GET "/admin/v1/peers/relay" => |_| Ok(Route::RelayPeers),
        "connected peers subscribed to each shard of this node";
    GET "/admin/v1/peers/relay/on/{shardId}" => |id| shard(id).map(Route::RelayPeersOn),
        "connected peers subscribed to one shard";
    GET "/admin/v1/peers/mesh" => |_| Ok(Route::MeshPeers),
        "peers in the mesh of each shard of this node";
    GET "/admin/v1/peers/mesh/on/{shardId}" => |id| shard(id).map(Route::MeshPeersOn),
        "peers in the mesh of one shard";
    GET "/admin/v1/peers/stats" => |_| Ok(Route::PeerStats),
        "numbers of peers by state, shard and protocol";
    GET "/admin/v1/peer/{peerId}" => |id| decoded(id).map(Route::Peer),
        "one peer, connected or known; otherwise 404";
    GET "/admin/v1/filter/subscriptions" => |_| Ok(Route::FilterSubscribers),
        "every receiver of filter pushes with its criteria";
    POST "/admin/v1/log-level/{logLevel}" => |level| decoded(level).map(Route::LogLevel),
        "changes the level of the log (TRACE, DEBUG, INFO, NOTICE, WARN, ERROR, FATAL), else 400";
    POST "/lightpush/v1/message" => |_| Ok(Route::LightPushLegacy),
        "publishes a message; answers in text";
    POST "/lightpush/v3/message" => |_| Ok(Route::LightPush),
        "publishes a message; answers in JSON with the codes of the protocol";
    POST "/relay/v1/subscriptions" => |_| Ok(Route::RelaySubscribe),
        "subscribes to pubsub topics: serves their shards, and their messages wait in queues";
    DELETE "/relay/v1/subscriptions" => |_| Ok(Route::RelayUnsubscribe),
        "ends such subscriptions and leaves the shards; topics without one are ignored";
    POST "/relay/v1/auto/subscriptions" => |_| Ok(Route::AutoSubscribe),
        "subscribes to content topics, each on the shard that it is assigned to";
    DELETE "/relay/v1/auto/subscriptions" => |_| Ok(Route::AutoUnsubscribe),
        "ends such subscriptions; topics without one are ignored";
    GET "/relay/v1/messages/{pubsubTopic}" => |topic| decoded(topic).map(Route::RelayMessages),
        "takes the messages that wait; 404 without a subscription";
    POST "/relay/v1/messages/{pubsubTopic}" => |topic| decoded(topic).map(Route::RelayPublish),
        "publishes a message";
    GET "/relay/v1/auto/messages/{contentTopic}" => |topic| decoded(topic).map(Route::AutoMessages),
        "takes the messages that wait; 404 without a subscription";
    POST "/relay/v1/auto/messages" => |_| Ok(Route::AutoPublish),
        "publishes a message on the shard that its content topic is assigned to";
    POST "/filter/v2/subscriptions" => |_| Ok(Route::FilterSubscribe),
        "subscribes to content topics by filter";
    PUT "/filter/v2/subscriptions" => |_| Ok(Route::FilterSubscribe),
        "changes the subscription";
    DELETE "/filter/v2/subscriptions" => |_| Ok(Route::FilterUnsubscribe),
        "ends subscriptions; 404 when none of the topics was subscribed to";
    DELETE "/filter/v2/subscriptions/all" => |_| Ok(Route::FilterUnsubscribeAll),
        "ends all of them; 404 when there are none";
    GET "/filter/v2/subscriptions/{requestId}" => |id| decoded(id).map(Route::FilterPing),
        "200 with subscriptions, otherwise 404";
    GET "/filter/v2/messages/{contentTopic}" => |topic| decoded(topic).map(Route::FilterMessages),
        "takes the messages that wait, of every shard that the topic was subscribed to on";
    GET "/store/v3/messages" => |_| Ok(Route::StoreQuery),
        "queries stored messages, a page at a time";
}

/// The route of a request. Errors: 404, 405 with the methods there are, 400 for a path that cannot
/// be decoded.
pub(crate) fn find(method: &Method, path: &str) -> Result<Route, ErrorResponse> {
    let mut allowed: Vec<&str> = Vec::new();
    for endpoint in ENDPOINTS {
        let Some(parameter) = endpoint.parameter(path) else { continue };
        let route = (endpoint.route)(parameter)?;
        // A load balancer may send HEAD for endpoints without side effects.
        let probed = *method == Method::HEAD
            && matches!(
                route,
                Route::Health | Route::Version | Route::Info | Route::Metrics | Route::Dashboard
            );
        if endpoint.method == *method || probed {
            return Ok(route);
        }
        allowed.push(endpoint.method.as_str());
    }
    if allowed.is_empty() {
        let shown: String = path.chars().take(128).collect();
        return Err(answer::not_found(format!("there is nothing at {shown}")));
    }
    let allow = allowed.join(", ");
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
