//! Finds the endpoint of a request, and explains requests that match none.
//!
//! The routes are few and fixed, so they are matched by explicit code: no table is built, nothing
//! is allocated, and the answer to every miss can name the route that was probably meant.

use http_server::ErrorResponse;
use hyper::{Method, StatusCode};
use ic_principal::Principal;

use envelope::effective::Effective;

/// The endpoint that a request is for.
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
    /// `POST /api/v2/canister/<id>/call`: asynchronous.
    CallAsync(Effective),
    /// `POST /api/{v3,v4}/canister/<id>/call` and `/api/v4/subnet/<id>/call`: synchronous.
    CallSync(Effective),
    /// `POST /api/{v2,v3}/canister/<id>/query` and `/api/v3/subnet/<id>/query`.
    Query(Effective),
    /// `POST /api/{v2,v3}/{canister,subnet}/<id>/read_state`: a certificate of the paths asked for.
    ReadState {
        /// The effective id in the URL.
        effective: Effective,
        /// Whether it is the v2 form.
        v2: bool,
    },
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
            Err(ErrorResponse::new(
                StatusCode::NOT_FOUND,
                "not_found",
                format!("there is no endpoint at this path; there are: {ENDPOINTS}"),
            )),
        ),
    }
}

fn version_of(what: &str, version: &str, versions: &str) -> ErrorResponse {
    let version: String = version.chars().take(16).collect();
    ErrorResponse::new(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("{what} is not served under /api/{version}; use {versions}"),
    )
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

/// A route of an effective id, with the label of its metrics and the version it was asked for.
struct Operation {
    label: &'static str,
    versions: &'static str,
    route: fn(Effective, &str) -> Option<Route>,
}

fn operation_of(
    method: &Method,
    version: &str,
    scope: &str,
    id: &str,
    operation: &str,
) -> RouteMatch {
    let canister = scope == "canister";
    let operation = match (operation, canister) {
        ("call", true) => Operation {
            label: "call",
            versions: "v2 (asynchronous), v3 or v4 (synchronous)",
            route: |effective, version| match version {
                "v2" => Some(Route::CallAsync(effective)),
                "v3" | "v4" => Some(Route::CallSync(effective)),
                _ => None,
            },
        },
        ("call", false) => Operation {
            label: "subnet_call",
            versions: "v4",
            route: |effective, version| (version == "v4").then_some(Route::CallSync(effective)),
        },
        ("query", true) => Operation {
            label: "query",
            versions: "v2 or v3",
            route: |effective, version| {
                matches!(version, "v2" | "v3").then_some(Route::Query(effective))
            },
        },
        ("query", false) => Operation {
            label: "subnet_query",
            versions: "v3",
            route: |effective, version| (version == "v3").then_some(Route::Query(effective)),
        },
        ("read_state", _) => Operation {
            label: if canister { "read_state" } else { "subnet_read_state" },
            versions: "v2 or v3",
            route: |effective, version| {
                matches!(version, "v2" | "v3")
                    .then_some(Route::ReadState { effective, v2: version == "v2" })
            },
        },
        _ => {
            let message = format!(
                "after the id must come call, query or read_state; the endpoints are: {ENDPOINTS}"
            );
            return ("none", Err(ErrorResponse::new(StatusCode::NOT_FOUND, "not_found", message)));
        }
    };
    let id = match Principal::from_text(id) {
        Ok(id) => id,
        Err(error) => {
            let message = format!("the id after /{scope}/ is no textual principal: {error}");
            return (operation.label, Err(ErrorResponse::bad_request("effective_id", message)));
        }
    };
    let effective = if canister { Effective::Canister(id) } else { Effective::Subnet(id) };
    let found = match (operation.route)(effective, version) {
        None => Err(version_of(operation.label, version, operation.versions)),
        Some(_) if *method != Method::POST => Err(wrong_method(method, "POST, OPTIONS")),
        Some(route) => Ok(route),
    };
    (operation.label, found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ID: &str = "em77e-bvlzu-aq";

    #[test]
    fn every_version_of_every_endpoint() {
        let id = Principal::from_text(ID).unwrap();
        let (canister, subnet) = (Effective::Canister(id), Effective::Subnet(id));
        let table = [
            ("v2/canister", "call", Some(Route::CallAsync(canister))),
            ("v3/canister", "call", Some(Route::CallSync(canister))),
            ("v4/canister", "call", Some(Route::CallSync(canister))),
            ("v5/canister", "call", None),
            ("v2/subnet", "call", None),
            ("v3/subnet", "call", None),
            ("v4/subnet", "call", Some(Route::CallSync(subnet))),
            ("v2/canister", "query", Some(Route::Query(canister))),
            ("v3/canister", "query", Some(Route::Query(canister))),
            ("v4/canister", "query", None),
            ("v2/subnet", "query", None),
            ("v3/subnet", "query", Some(Route::Query(subnet))),
            ("v2/canister", "read_state", Some(Route::ReadState { effective: canister, v2: true })),
            (
                "v3/canister",
                "read_state",
                Some(Route::ReadState { effective: canister, v2: false }),
            ),
            ("v2/subnet", "read_state", Some(Route::ReadState { effective: subnet, v2: true })),
            ("v3/subnet", "read_state", Some(Route::ReadState { effective: subnet, v2: false })),
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
