//! The frontend: a canister that serves a page to browsers, through an HTTP gateway, and everything
//! that a gateway must handle: assets certified in both versions, a long one piece by piece and one
//! by ranges, an answer by an update call, and the answers of a hostile canister. Tests open it; it
//! knows nothing of them.
//!
//! - [`assets`]: the assets and their certification
//!
//! `/hostile?KIND` is certified to be not certified. KIND is the misbehaviour: `split` a header
//! into two, send a false `length`, have the `status` 42, stream without an `end`, stream from
//! `elsewhere`.

mod assets;

use std::cell::{Cell, RefCell};

use assets::{ASSETS, AssetCertification, Header, Kind};
use candid::{CandidType, Func, Principal, define_function};
use ic_cdk::{init, post_upgrade, query, update};
use ic_http_certification::{HttpRequest, HttpUpdateRequest};
use serde::Deserialize;
use serde_bytes::ByteBuf;

/// Argument of the streaming callback.
#[derive(CandidType, Deserialize, Clone)]
pub struct Token {
    /// Number of the piece.
    piece: u64,
    /// Whether there is always another one.
    endless: bool,
}

define_function!(pub Callback : (Token) -> (Piece) query);

/// How the client gets the rest of the body.
#[derive(CandidType)]
pub enum StreamingStrategy {
    /// By a query.
    Callback {
        /// The query.
        callback: Callback,
        /// Its argument.
        token: Token,
    },
}

/// Result of the streaming callback.
#[derive(CandidType, Deserialize)]
pub struct Piece {
    body: ByteBuf,
    token: Option<Token>,
}

/// A response.
#[derive(CandidType)]
pub struct Response {
    status_code: u16,
    headers: Vec<Header>,
    body: ByteBuf,
    upgrade: Option<bool>,
    streaming_strategy: Option<StreamingStrategy>,
}

thread_local! {
    static CERTIFIED: RefCell<Option<AssetCertification>> = const { RefCell::new(None) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn certify() {
    let certified = AssetCertification::new();
    ic_cdk::api::certified_data_set(certified.root());
    CERTIFIED.set(Some(certified));
}

#[init]
fn init() {
    certify();
}

#[post_upgrade]
fn post_upgrade() {
    certify();
}

/// The piece in which a range begins.
fn asked_for(request: &HttpRequest) -> usize {
    let range = request.headers().iter().find(|(name, _)| name.eq_ignore_ascii_case("range"));
    let first = range.and_then(|(_, value)| value.strip_prefix("bytes=")?.split('-').next()?.parse().ok());
    first.unwrap_or(0_usize).min(assets::LONG_BYTES - 1) / assets::PIECE_BYTES
}

fn streaming(canister: Principal, piece: u64, endless: bool) -> Option<StreamingStrategy> {
    let callback = Callback(Func { principal: canister, method: "next_piece".into() });
    Some(StreamingStrategy::Callback { callback, token: Token { piece, endless } })
}

#[query]
fn http_request(request: HttpRequest<'static>) -> Response {
    let url = request.get_path().unwrap_or_default();
    let found = assets::find(&url);
    let asset = &ASSETS[found];
    let number = if asset.kind == Kind::Ranges { asked_for(&request) } else { 0 };
    let mut headers = asset.headers(number);
    CERTIFIED.with_borrow(|certified| {
        headers.extend(certified.as_ref().map(|certified| certified.header(found, number, &url)));
    });
    let mut response = Response {
        status_code: asset.status(),
        headers,
        body: ByteBuf::from(match asset.kind {
            Kind::Whole(body) => body.to_vec(),
            Kind::Streamed | Kind::Ranges => assets::piece(number),
            Kind::Forged => b"something else".to_vec(),
            Kind::First => assets::OLD.to_vec(),
            Kind::Nothing => b"nothing of this is certified".to_vec(),
        }),
        upgrade: (url == "/counter").then_some(true),
        streaming_strategy: None,
    };
    match asset.kind {
        Kind::Streamed => {
            response.streaming_strategy = streaming(ic_cdk::api::canister_self(), 1, false);
        }
        Kind::Nothing => misbehave(&mut response, request.get_query().ok().flatten().as_deref()),
        _ => {}
    }
    response
}

fn misbehave(response: &mut Response, what: Option<&str>) {
    match what {
        Some("split") => response.headers.push(("x-split".into(), "a\r\nset-cookie: b".into())),
        Some("length") => response.headers.push(("content-length".into(), "1".into())),
        Some("status") => response.status_code = 42,
        Some("end") => response.streaming_strategy = streaming(ic_cdk::api::canister_self(), 0, true),
        Some("elsewhere") => {
            response.streaming_strategy = streaming(Principal::management_canister(), 0, false);
        }
        _ => {}
    }
}

#[query]
fn next_piece(token: Token) -> Piece {
    let next = token.piece + 1;
    if token.endless {
        return Piece { body: ByteBuf::from([7; 1_000]), token: Some(Token { piece: next, ..token }) };
    }
    Piece {
        body: ByteBuf::from(assets::piece(token.piece as usize)),
        token: (next < assets::PIECES as u64).then_some(Token { piece: next, ..token }),
    }
}

#[update]
fn http_request_update(request: HttpUpdateRequest<'static>) -> Response {
    COUNT.set(COUNT.get() + 1);
    let (count, method, bytes) = (COUNT.get(), request.method(), request.body().len());
    Response {
        status_code: 200,
        headers: vec![("content-type".into(), "text/plain".into())],
        body: ByteBuf::from(format!("{count}, by {method} with {bytes} bytes")),
        upgrade: None,
        streaming_strategy: None,
    }
}

#[cfg(feature = "interface")]
mod interface {
    //! Exports the Candid text that build.sh embeds; left out of the canister itself, whose size it
    //! would double.

    // The types that the exported interface names.
    use super::{Piece, Response, Token};
    use ic_http_certification::{HttpRequest, HttpUpdateRequest};

    ic_cdk::export_candid!();
}
