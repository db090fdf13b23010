//! A canister that asks, and has methods that transform what it gets.

use candid::{CandidType, Encode, Func, Principal};
use ic_management_canister_types::{HttpHeader, HttpRequestResult};
use serde_bytes::ByteBuf;

/// Cycles that it attaches to a request.
pub(crate) const ATTACHED: u64 = 30_000_000_000;

/// `ask` passes its argument to `http_request`. It replies with the result: `+`, the refunded
/// cycles in 16 bytes, and the reply; or `-`, the cycles, the code in a byte, and the text. `relay`
/// does the same and replies, or rejects with the text, as it was answered. `fixed`, `bloat`,
/// `fails`, `echo` and `composite` are transforms: to 200 `same`, to 4 KiB, to a trap, to the
/// transform's own argument after its caller.
pub(crate) fn module() -> Vec<u8> {
    let same = HttpRequestResult { status: 200_u8.into(), headers: vec![], body: b"same".to_vec() };
    let same = Encode!(&same).unwrap();
    let escaped: String = same.iter().map(|byte| format!("\\{byte:02x}")).collect();
    let text = WAT.replace("SAME_BYTES", &same.len().to_string());
    let text = text.replace("SAME", &escaped).replace("ATTACHED", &ATTACHED.to_string());
    wat::parse_str(text).unwrap()
}

const WAT: &str = r#"(module
  (import "ic0" "call_new" (func $call_new (param i32 i32 i32 i32 i32 i32 i32 i32)))
  (import "ic0" "call_data_append" (func $call_data_append (param i32 i32)))
  (import "ic0" "call_cycles_add128" (func $call_cycles_add128 (param i64 i64)))
  (import "ic0" "call_perform" (func $call_perform (result i32)))
  (import "ic0" "msg_arg_data_size" (func $arg_size (result i32)))
  (import "ic0" "msg_arg_data_copy" (func $arg_copy (param i32 i32 i32)))
  (import "ic0" "msg_caller_size" (func $caller_size (result i32)))
  (import "ic0" "msg_caller_copy" (func $caller_copy (param i32 i32 i32)))
  (import "ic0" "msg_cycles_refunded128" (func $refunded (param i32)))
  (import "ic0" "msg_reject_code" (func $reject_code (result i32)))
  (import "ic0" "msg_reject_msg_size" (func $reject_size (result i32)))
  (import "ic0" "msg_reject_msg_copy" (func $reject_copy (param i32 i32 i32)))
  (import "ic0" "msg_reply_data_append" (func $append (param i32 i32)))
  (import "ic0" "msg_reply" (func $reply))
  (import "ic0" "msg_reject" (func $reject (param i32 i32)))
  (import "ic0" "trap" (func $trap (param i32 i32)))
  (memory 64)
  (table funcref (elem $on_reply $on_reject $relay_reply $relay_reject))
  (data (i32.const 0) "http_request+-")
  (data (i32.const 256) "SAME")
  (func $arg (result i32)
    (call $arg_copy (i32.const 65536) (i32.const 0) (call $arg_size))
    (call $arg_size))
  (func $begin (param $mark i32)
    (call $refunded (i32.const 64))
    (call $append (local.get $mark) (i32.const 1))
    (call $append (i32.const 64) (i32.const 16)))
  (func $on_reply (param i32)
    (call $begin (i32.const 12))
    (call $append (i32.const 65536) (call $arg))
    (call $reply))
  (func $on_reject (param i32)
    (call $begin (i32.const 13))
    (i32.store8 (i32.const 80) (call $reject_code))
    (call $append (i32.const 80) (i32.const 1))
    (call $reject_copy (i32.const 65536) (i32.const 0) (call $reject_size))
    (call $append (i32.const 65536) (call $reject_size))
    (call $reply))
  (func $relay_reply (param i32)
    (call $append (i32.const 65536) (call $arg))
    (call $reply))
  (func $relay_reject (param i32)
    (call $reject_copy (i32.const 65536) (i32.const 0) (call $reject_size))
    (call $reject (i32.const 65536) (call $reject_size)))
  (func (export "canister_update ask")
    (call $ask (i32.const 0)))
  (func (export "canister_update relay")
    (call $ask (i32.const 2)))
  (func $ask (param $on_reply i32)
    (call $call_new (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 12)
      (local.get $on_reply) (i32.const 0)
      (i32.add (local.get $on_reply) (i32.const 1)) (i32.const 0))
    (call $call_data_append (i32.const 65536) (call $arg))
    (call $call_cycles_add128 (i64.const 0) (i64.const ATTACHED))
    (if (call $call_perform) (then (call $trap (i32.const 0) (i32.const 12)))))
  (func $fixed (export "canister_query fixed")
    (call $append (i32.const 256) (i32.const SAME_BYTES))
    (call $reply))
  (func (export "canister_composite_query composite") (call $fixed))
  (func (export "canister_query bloat")
    (call $append (i32.const 65536) (i32.const 4096))
    (call $reply))
  (func (export "canister_query fails") (call $trap (i32.const 0) (i32.const 4)))
  (func (export "canister_query echo")
    (i32.store8 (i32.const 80) (call $caller_size))
    (call $append (i32.const 80) (i32.const 1))
    (call $caller_copy (i32.const 80) (i32.const 0) (call $caller_size))
    (call $append (i32.const 80) (call $caller_size))
    (call $append (i32.const 65536) (call $arg))
    (call $reply))
)"#;

/// The argument of `http_request`, to be changed by a test.
#[derive(CandidType, Clone)]
pub(crate) struct Request {
    pub(crate) url: String,
    pub(crate) max_response_bytes: Option<u64>,
    pub(crate) method: Method,
    pub(crate) headers: Vec<HttpHeader>,
    pub(crate) body: Option<ByteBuf>,
    pub(crate) transform: Option<Transform>,
    pub(crate) is_replicated: Option<bool>,
}

#[derive(CandidType, Clone)]
#[allow(non_camel_case_types, dead_code)]
pub(crate) enum Method {
    get,
    head,
    post,
    put,
    delete,
    patch,
}

#[derive(CandidType, Clone)]
pub(crate) struct Transform {
    function: ic_management_canister_types::TransformFunc,
    context: ByteBuf,
}

impl Transform {
    pub(crate) fn new(principal: Principal, method: &str, context: &[u8]) -> Self {
        let function = Func { principal, method: method.into() };
        Self { function: function.into(), context: ByteBuf::from(context) }
    }
}

impl Request {
    pub(crate) fn get(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            max_response_bytes: Some(3_000),
            method: Method::get,
            headers: vec![],
            body: None,
            transform: None,
            is_replicated: None,
        }
    }

    pub(crate) fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(HttpHeader { name: name.into(), value: value.into() });
        self
    }

    pub(crate) fn transformed(mut self, by: Principal, method: &str) -> Self {
        self.transform = Some(Transform::new(by, method, b"context"));
        self
    }

    pub(crate) fn encoded(&self) -> Vec<u8> {
        Encode!(self).unwrap()
    }
}

/// Result of a request, and the refunded cycles.
#[derive(Debug, PartialEq)]
pub(crate) struct Got {
    pub(crate) refunded: u128,
    /// The reply, or the code and the text.
    pub(crate) result: Result<Vec<u8>, (u8, String)>,
}

impl Got {
    /// Reads what `ask` replies.
    #[track_caller]
    pub(crate) fn read(reply: &[u8]) -> Self {
        let (mark, rest) = reply.split_first().unwrap();
        let (refunded, rest) = rest.split_first_chunk::<16>().unwrap();
        let result = match mark {
            b'+' => Ok(rest.to_vec()),
            b'-' => Err((rest[0], String::from_utf8(rest[1..].to_vec()).unwrap())),
            other => panic!("{other}"),
        };
        Self { refunded: u128::from_le_bytes(*refunded), result }
    }

    /// The response.
    #[track_caller]
    pub(crate) fn response(&self) -> HttpRequestResult {
        candid::decode_one(self.result.as_ref().unwrap()).unwrap()
    }

    /// Code and text.
    #[track_caller]
    pub(crate) fn reject(&self) -> (u8, &str) {
        let (code, text) = self.result.as_ref().unwrap_err();
        (*code, text)
    }
}
