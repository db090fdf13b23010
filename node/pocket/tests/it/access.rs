//! Access of web pages in the user's browser to the server, and resources that clients can have it
//! use.

use std::path::Path;

use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::harness::*;

const EVIL: &str = "http://evil.example";

fn in_folder(folder: &Path) -> Value {
    let mut config = one_subnet();
    config["state_dir"] = json!(folder);
    config
}

/// Requests that change something, or show what only the user may see.
fn private_requests(instance: u64, folder: &Path) -> Vec<(Method, String, Option<Value>)> {
    let at = |path: &str| format!("/instances/{instance}/{path}");
    let gateway = json!({"forward_to": {"PocketIcInstance": instance}, "ip_addr": "0.0.0.0"});
    vec![
        (Method::GET, "/status".into(), None),
        (Method::GET, "/instances".into(), None),
        (Method::POST, "/instances".into(), Some(in_folder(folder))),
        (Method::DELETE, format!("/instances/{instance}"), None),
        (Method::POST, "/blobstore".into(), Some(json!("blob"))),
        (Method::GET, "/http_gateway".into(), None),
        (Method::POST, "/http_gateway".into(), Some(gateway)),
        (Method::POST, at("auto_progress"), Some(json!({}))),
        (Method::POST, at("stop_progress"), None),
        (Method::POST, at("update/tick"), Some(json!({}))),
        (Method::GET, at("read/get_time"), None),
        (Method::GET, at("_/topology"), None),
        (Method::GET, at("_/dashboard"), None),
        (Method::POST, "/verify_signature".into(), Some(json!({}))),
        (Method::GET, "/read_graph/started/1".into(), None),
        (Method::DELETE, "/prune_graph/started/1".into(), None),
        (Method::OPTIONS, "/instances".into(), None),
    ]
}

// Promise: P16 - Foreign `Host`, `Origin` and `Sec-Fetch-Site` headers are refused and change
//   nothing.
#[tokio::test]
async fn requests_of_other_pages_are_refused_and_change_nothing() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let kept = tempfile::tempdir().unwrap();
    let folder = kept.path().join("made-by-a-page");
    let port = server.port();
    let neighbour = format!("http://abc.localhost:{port}");
    let other_port = format!("http://127.0.0.1:{}", port ^ 1);
    let foreign = [
        (header::ORIGIN, EVIL),
        (header::ORIGIN, "null"),
        (header::ORIGIN, &neighbour),
        (header::ORIGIN, &other_port),
        (header::HOST, "evil.example"),
        (header::HOST, "localhost.evil.example"),
    ];
    let (_, before) = server.get(&format!("/instances/{instance}/read/get_time")).await;
    for (name, value) in foreign {
        for (method, path, body) in private_requests(instance, &folder) {
            for declared in ["application/json", "text/plain"] {
                let headers = [(name.clone(), value), (header::CONTENT_TYPE, declared)];
                let answer = server.send(method.clone(), &path, &headers, body.as_ref()).await;
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{method} {path} {value}");
                let readers = answer.headers().get(header::ACCESS_CONTROL_ALLOW_ORIGIN);
                assert_eq!(readers, None, "{method} {path}");
                let text = answer.text().await.unwrap();
                assert!(text.contains("this server"), "{text}");
                assert!(text.contains("--allow-host NAME"), "{text}");
            }
        }
    }
    assert!(!folder.exists());
    assert_eq!(server.get("/instances").await.1, json!(["Available"]));
    assert_eq!(server.get("/http_gateway").await.1, json!([]));
    assert_eq!(server.get(&format!("/instances/{instance}/read/get_time")).await.1, before);
    assert_eq!(server.get(&format!("/instances/{instance}/auto_progress")).await.1, json!(false));
}

// Promise: P16 - Requests that a foreign page embeds are refused; a link is followed.
#[tokio::test]
async fn what_a_page_embeds_is_refused_and_a_link_is_followed() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let path = format!("/instances/{instance}/_/dashboard");
    let marks = |site, mode, dest| {
        let names = ["sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"];
        names.map(header::HeaderName::from_static).into_iter().zip([site, mode, dest])
    };
    for (site, mode, dest, expected) in [
        ("cross-site", "no-cors", "image", StatusCode::FORBIDDEN),
        ("same-site", "no-cors", "script", StatusCode::FORBIDDEN),
        ("cross-site", "navigate", "iframe", StatusCode::FORBIDDEN),
        ("cross-site", "navigate", "document", StatusCode::OK),
        ("same-origin", "cors", "empty", StatusCode::OK),
        ("none", "navigate", "document", StatusCode::OK),
    ] {
        let headers: Vec<_> = marks(site, mode, dest).collect();
        let answer = server.send(Method::GET, &path, &headers, None).await;
        assert_eq!(answer.status(), expected, "{site} {mode} {dest}");
    }
    let headers: Vec<_> = marks("cross-site", "navigate", "document").collect();
    let stop = format!("/instances/{instance}/stop_progress");
    let answer = server.send(Method::POST, &stop, &headers, None).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
}

// Promise: P16 - Own pages and host names of the test server are accepted.
#[tokio::test]
async fn the_servers_own_pages_and_names_are_accepted() {
    let server = Server::start(&["--allow-host", "pocket,ci.example"]);
    let own = server.url.clone();
    let (by_name, by_container) =
        (format!("localhost:{}", server.port()), format!("pocket:{}", server.port()));
    for headers in [
        vec![(header::ORIGIN, own.as_str())],
        vec![(header::HOST, by_name.as_str())],
        vec![(header::HOST, by_container.as_str())],
        vec![(header::HOST, "CI.example"), (header::ORIGIN, "https://ci.example")],
        vec![(header::HOST, "10.1.2.3:8080")],
        vec![(header::HOST, "[::1]:8080")],
    ] {
        let answer = server.send(Method::GET, "/instances", &headers, None).await;
        assert_eq!(answer.status(), StatusCode::OK, "{headers:?}");
        // Nor may another page read, frame or run what it is sent.
        assert_eq!(answer.headers().get(header::ACCESS_CONTROL_ALLOW_ORIGIN), None);
        assert_eq!(answer.headers()["cross-origin-resource-policy"], "same-origin");
        assert_eq!(answer.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
    }
    let headers = [(header::HOST, "other.example")];
    let answer = server.send(Method::GET, "/instances", &headers, None).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    let output = program().args(["--allow-host", "http://x"]).output().unwrap();
    assert!(!output.status.success());
}

// Promise: P15 - Early refusals of the test server announce the end of a connection with an unread
//   body.
#[tokio::test]
async fn early_refusal_of_a_request_with_a_body_announces_the_end_of_the_connection() {
    let server = Server::start(&[]);
    let (none, foreign) = (vec![], vec![(header::ORIGIN, EVIL)]);
    let body = json!({});
    for (path, headers, status) in [
        ("/nothing", &none, StatusCode::NOT_FOUND),
        ("/instances/77/api/v2/status", &none, StatusCode::NOT_FOUND),
        ("/instances", &foreign, StatusCode::FORBIDDEN),
    ] {
        let answer = server.send(Method::POST, path, headers, Some(&body)).await;
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(answer.headers()[header::CONNECTION], "close", "{path}");
        let answer = server.send(Method::GET, path, headers, None).await;
        assert_eq!(answer.status(), status, "{path}");
        assert_eq!(answer.headers().get(header::CONNECTION), None, "{path}");
    }
}

// Promise: P16 - A body that is not declared as JSON is refused.
#[tokio::test]
async fn a_body_that_is_not_declared_as_json_is_refused() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let tick = format!("/instances/{instance}/update/tick");
    for declared in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let headers = [(header::CONTENT_TYPE, declared)];
        for path in ["/instances", "/http_gateway", tick.as_str(), "/verify_signature"] {
            let answer = server.send(Method::POST, path, &headers, Some(&one_subnet())).await;
            assert!(answer.status().is_client_error(), "{path}: {declared}");
            let text = answer.text().await.unwrap();
            assert!(text.contains("application/json"), "{path}: {text}");
        }
    }
    let answer = server.send(Method::POST, &tick, &[], Some(&json!({}))).await;
    assert_eq!(answer.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(server.get("/instances").await.1, json!(["Available"]));
    // Blobs are not JSON, and clients send requests without an argument without a type.
    let answer = server.send(Method::POST, "/blobstore", &[], Some(&json!("blob"))).await;
    assert_eq!(answer.status(), StatusCode::OK);
    let stop = format!("/instances/{instance}/stop_progress");
    assert_eq!(server.send(Method::POST, &stop, &[], None).await.status(), StatusCode::OK);
}

// Promise: P16 - Pages of any origin reach the interface endpoints of an instance.
#[tokio::test]
async fn agents_in_pages_reach_the_endpoints_of_an_instance() {
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let status = format!("/instances/{instance}/api/v2/status");
    let page = [(header::ORIGIN, EVIL)];
    for method in [Method::GET, Method::OPTIONS] {
        let answer = server.send(method.clone(), &status, &page, None).await;
        assert!(answer.status().is_success(), "{method}: {}", answer.status());
        assert_eq!(answer.headers()[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*", "{method}");
    }
    let rebound = [(header::HOST, "evil.example")];
    let answer = server.send(Method::GET, &status, &rebound, None).await;
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    // Nothing else is behind that path.
    let other = format!("/instances/{instance}/api/../read/get_time");
    let answer = server.send(Method::GET, &other, &page, None).await;
    assert!(answer.status().is_client_error(), "{}", answer.status());
}

// Promise: P16 - Gateways of `thimble-pocket` listen on loopback unless an option allows more.
#[tokio::test]
async fn gateways_listen_for_other_machines_only_where_that_is_allowed() {
    let asked = |instance: u64, address: &str| {
        let to = json!({"PocketIcInstance": instance});
        json!({"forward_to": to, "ip_addr": address})
    };
    let server = Server::start(&[]);
    let instance = server.instance(&one_subnet()).await;
    let mut config = one_subnet();
    config["http_gateway_config"] = json!({"ip_addr": "0.0.0.0"});
    for (path, body) in [
        ("/http_gateway", asked(instance, "0.0.0.0")),
        ("/http_gateway", asked(instance, "::")),
        ("/instances", config),
    ] {
        let (status, answer) = server.post(path, &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        let message = answer["Error"]["message"].as_str().unwrap();
        assert!(message.contains("--allow-remote-gateways"), "{message}");
    }
    assert_eq!(server.get("/http_gateway").await.1, json!([]));
    server.ok("/http_gateway", &asked(instance, "127.0.0.1")).await;
    let server = Server::start(&["--allow-remote-gateways"]);
    let instance = server.instance(&one_subnet()).await;
    server.ok("/http_gateway", &asked(instance, "0.0.0.0")).await;
}

// Promise: P16 - Instances are kept only within the allowed folders.
#[tokio::test]
async fn instances_are_kept_only_within_the_folders_that_are_allowed() {
    let [allowed, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let root = allowed.path().to_str().unwrap();
    let link = allowed.path().join("link");
    std::os::unix::fs::symlink(other.path(), &link).unwrap();
    let named = Server::start(&["--state-dir-root", root]);
    let refused = async |server: &Server, folder: &Path| {
        let (status, answer) = server.post("/instances", &in_folder(folder)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        let message = answer["Error"]["message"].as_str().unwrap();
        assert!(message.contains("--state-dir-root"), "{message}");
    };
    for folder in [
        other.path().join("new"),
        link.clone(),
        link.join("new"),
        allowed.path().join("..").join("new"),
        "relative".into(),
    ] {
        refused(&named, &folder).await;
    }
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(allowed.path()).unwrap().count(), 1);
    named.instance(&in_folder(&allowed.path().join("a/b"))).await;
    assert!(allowed.path().join("a/b").is_dir());
    // Without the option: the working directory, the home folder, temporary folders.
    let server = Server::start(&[]);
    refused(&server, Path::new("/thimble-pocket-test")).await;
    refused(&server, Path::new("/usr/share/thimble-pocket-test")).await;
    server.instance(&in_folder(&other.path().join("new"))).await;
}
