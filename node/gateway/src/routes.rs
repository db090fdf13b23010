//! Finds the endpoint of a request, and explains requests that match none.
//!
//! The routes are few and fixed, so they are matched by explicit code: no table is built, nothing
//! is allocated, and the answer to every miss can name the route that was probably meant.

use http_server::ErrorResponse;
use hyper::{Method, StatusCode};
use ic_principal::Principal;

use envelope::effective::Effective;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `GET /api/v2/status`: the status endpoint of the interface specification.
    Status,
    /// `GET /health`: 200 while the node is able to serve, else 503.
    Health,
    /// `GET /metrics`: metrics as OpenMetrics text.
    Metrics,
    /// `GET /status.json`: [`crate::report::Report`] as JSON.
    Report,
    /// `GET /debug/heap`: the heap profile; 404 unless the node samples allocations.
    HeapProfile,
    /// `GET /dashboard`: the page that draws the status report.
    Dashboard,
    /// An endpoint that takes an envelope, at the effective id in its URL.
    Envelope(Operation, Effective),
}

/// An endpoint that takes an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `POST /api/v2/canister/<id>/call`: asynchronous.
    CallAsync,
    /// `POST /api/{v3,v4}/canister/<id>/call` and `/api/v4/subnet/<id>/call`: synchronous.
    CallSync,
    /// `POST /api/{v2,v3}/canister/<id>/query` and `/api/v3/subnet/<id>/query`.
    Query,
    /// `POST /api/{v2,v3}/{canister,subnet}/<id>/read_state`: a certificate of the paths asked for.
    ReadState { v2: bool },
}

/// Whether a path is for the operator: other web pages may not read it.
pub(crate) fn is_for_operators(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    matches!(first, "metrics" | "status.json" | "dashboard" | "debug")
}

const ENDPOINTS: &str = "GET /api/v2/status, GET /health, GET /metrics, GET /status.json, GET \
                         /dashboard, GET /debug/heap, POST /api/{v2,v3,v4}/canister/<effective \
                         canister id>/call, POST /api/v4/subnet/<subnet id>/call, POST \
                         /api/{v2,v3}/canister/<effective canister id>/query, POST \
                         /api/v3/subnet/<subnet id>/query, POST /api/{v2,v3}/canister/<effective \
                         canister id>/read_state, POST /api/{v2,v3}/subnet/<subnet id>/read_state";

/// A match: the label its metrics go under, and the endpoint or why there is none.
pub(crate) type RouteMatch = (&'static str, Result<Route, ErrorResponse>);

/// Finds the endpoint of a path and checks its method.
pub(crate) fn find(method: &Method, path: &str) -> RouteMatch {
    let mut segments = path.trim_start_matches('/').splitn(6, '/');
    let segments: [&str; 6] = std::array::from_fn(|_| segments.next().unwrap_or_default());
    match segments {
        ["health", "", ..] => ("health", get(method, Route::Health)),
        ["metrics", "", ..] => ("metrics", get(method, Route::Metrics)),
        ["status.json", "", ..] => ("report", get(method, Route::Report)),
        ["debug", "heap", "", ..] => ("heap_profile", get(method, Route::HeapProfile)),
        ["dashboard", "", ..] => ("dashboard", get(method, Route::Dashboard)),
        ["api", "v2", "status", "", ..] => ("status", get(method, Route::Status)),
        ["api", version, "status", "", ..] => ("none", Err(version_of("status", version, "v2"))),
        ["api", version, scope @ ("canister" | "subnet"), id, operation, ""] => {
            operation_of(method, version, scope, id, operation)
        }
        _ => (
            "none",
            Err(not_found(format!("there is no endpoint at this path; there are: {ENDPOINTS}"))),
        ),
    }
}

fn version_of(what: &str, version: &str, versions: &str) -> ErrorResponse {
    let version: String = version.chars().take(16).collect();
    not_found(format!("{what} is not served under /api/{version}; use {versions}"))
}

fn not_found(message: String) -> ErrorResponse {
    ErrorResponse::new(StatusCode::NOT_FOUND, "not_found", message)
}

fn wrong_method(method: &Method, allow: &'static str) -> ErrorResponse {
    let method: String = method.as_str().chars().take(16).collect();
    let message = format!("this endpoint does not take {method}; it takes {allow}");
    ErrorResponse {
        allow: Some(allow.into()),
        ..ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }
}

fn get(method: &Method, route: Route) -> Result<Route, ErrorResponse> {
    if matches!(*method, Method::GET | Method::HEAD) {
        Ok(route)
    } else {
        Err(wrong_method(method, "GET, HEAD, OPTIONS"))
    }
}

fn operation_of(
    method: &Method,
    version: &str,
    scope: &str,
    id: &str,
    operation: &str,
) -> RouteMatch {
    use Operation::{CallAsync, CallSync, Query, ReadState};
    let canister = scope == "canister";
    let if_v2_or_v3 = |operation| matches!(version, "v2" | "v3").then_some(operation);
    let (label, versions, operation) = match (operation, canister) {
        ("call", true) => {
            let call = match version {
                "v2" => Some(CallAsync),
                "v3" | "v4" => Some(CallSync),
                _ => None,
            };
            ("call", "v2 (asynchronous), v3 or v4 (synchronous)", call)
        }
        ("call", false) => ("subnet_call", "v4", (version == "v4").then_some(CallSync)),
        ("query", true) => ("query", "v2 or v3", if_v2_or_v3(Query)),
        ("query", false) => ("subnet_query", "v3", (version == "v3").then_some(Query)),
        ("read_state", _) => {
            let label = if canister { "read_state" } else { "subnet_read_state" };
            (label, "v2 or v3", if_v2_or_v3(ReadState { v2: version == "v2" }))
        }
        _ => {
            let message = format!(
                "after the id must come call, query or read_state; the endpoints are: {ENDPOINTS}"
            );
            return ("none", Err(not_found(message)));
        }
    };
    let id = match Principal::from_text(id) {
        Ok(id) => id,
        Err(error) => {
            let message = format!("the id after /{scope}/ is no textual principal: {error}");
            return (label, Err(ErrorResponse::bad_request("effective_id", message)));
        }
    };
    let effective = if canister { Effective::Canister(id) } else { Effective::Subnet(id) };
    let found = match operation {
        None => Err(version_of(label, version, versions)),
        Some(_) if *method != Method::POST => Err(wrong_method(method, "POST, OPTIONS")),
        Some(operation) => Ok(Route::Envelope(operation, effective)),
    };
    (label, found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ID: &str = "em77e-bvlzu-aq";

    #[test]
    fn every_version_of_every_endpoint() {
        let id = Principal::from_text(ID).unwrap();
        let canister = |operation| Some(Route::Envelope(operation, Effective::Canister(id)));
        let subnet = |operation| Some(Route::Envelope(operation, Effective::Subnet(id)));
        let table = [
            ("v2/canister", "call", canister(Operation::CallAsync)),
            ("v3/canister", "call", canister(Operation::CallSync)),
            ("v4/canister", "call", canister(Operation::CallSync)),
            ("v5/canister", "call", None),
            ("v2/subnet", "call", None),
            ("v3/subnet", "call", None),
            ("v4/subnet", "call", subnet(Operation::CallSync)),
            ("v2/canister", "query", canister(Operation::Query)),
            ("v3/canister", "query", canister(Operation::Query)),
            ("v4/canister", "query", None),
            ("v2/subnet", "query", None),
            ("v3/subnet", "query", subnet(Operation::Query)),
            ("v2/canister", "read_state", canister(Operation::ReadState { v2: true })),
            ("v3/canister", "read_state", canister(Operation::ReadState { v2: false })),
            ("v2/subnet", "read_state", subnet(Operation::ReadState { v2: true })),
            ("v3/subnet", "read_state", subnet(Operation::ReadState { v2: false })),
            ("v4/canister", "read_state", None),
            ("v2/canister", "else", None),
        ];
        for (prefix, operation, expected) in table {
            let path = format!("/api/{prefix}/{ID}/{operation}");
            let (_, found) = find(&Method::POST, &path);
            match expected {
                Some(route) => assert_eq!(found.unwrap(), route, "{path}"),
                None => assert_eq!(found.unwrap_err().status, StatusCode::NOT_FOUND, "{path}"),
            }
        }
    }

    #[test]
    fn unknown_path_or_method_is_refused_with_the_endpoints() {
        let refused = |method: &Method, path: &str| find(method, path).1.unwrap_err();
        for endpoint in ["/api/v2/status", "/status.json", "/dashboard"] {
            assert!(refused(&Method::GET, "/").message.contains(endpoint));
        }
        let report = refused(&Method::POST, "/status.json");
        assert_eq!(report.allow.as_deref(), Some("GET, HEAD, OPTIONS"));
        assert_eq!(refused(&Method::GET, "/dashboard/more").status, StatusCode::NOT_FOUND);
        assert!(refused(&Method::GET, "/api/v3/status").message.contains("use v2"));
        assert!(
            refused(&Method::POST, &format!("/api/v9/canister/{ID}/query"))
                .message
                .contains("v2 or v3")
        );
        let method = refused(&Method::GET, &format!("/api/v2/canister/{ID}/query"));
        assert_eq!(
            (method.status, method.allow.as_deref()),
            (StatusCode::METHOD_NOT_ALLOWED, Some("POST, OPTIONS"))
        );
        let health = refused(&Method::POST, "/health");
        assert_eq!(health.allow.as_deref(), Some("GET, HEAD, OPTIONS"));
        let id = refused(&Method::POST, "/api/v2/canister/em77e-bvlzu-aa/query");
        assert_eq!(id.status, StatusCode::BAD_REQUEST);
        assert!(id.message.contains("principal"));
        assert_eq!(
            refused(&Method::POST, &format!("/api/v2/canister/{ID}/query/more")).status,
            StatusCode::NOT_FOUND
        );
        assert!(find(&Method::HEAD, "/metrics").1.is_ok());
    }
}
