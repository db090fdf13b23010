//! A canister's answer to a browser's request, in Candid: it is read within bounds of memory and
//! steps, the ranges found are within the reply, and a token is returned no longer than it was
//! received.
//!
//! The first byte selects whether the rest is a response or a further piece of one.

use crate::{
    allocated::within,
    reply::{self, BadReply, HeaderBounds, Token},
};

const BOUNDS: HeaderBounds = HeaderBounds { lines: 96, bytes: 32 << 10 };
/// A reply is no longer.
const REPLY_BYTES_MAX: usize = 2 << 20;
/// A token as it is returned: its kept part, and a few bytes around it.
const TOKEN_BYTES_MAX: usize = (64 << 10) + 64;
/// Fixed memory of reading, for any length of the reply: types, header lines, a token and a name.
const BESIDE_BYTES: usize = 512 << 10;

fn check_token(token: &Token, reply: &[u8]) {
    assert!(token.0.len() <= TOKEN_BYTES_MAX && token.0.len() <= reply.len() + 8);
    assert!(token.0.starts_with(b"DIDL"));
}

fn response(bytes: &[u8]) -> Result<(), BadReply> {
    let read = within(BESIDE_BYTES, || reply::http(bytes, BOUNDS))?;
    assert!(bytes.get(read.body).is_some(), "the body is within the reply");
    assert!(read.headers.len() as u64 <= BOUNDS.lines);
    let header_bytes: usize =
        read.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(header_bytes as u64 <= BOUNDS.bytes);
    if let Some(streaming) = read.streaming {
        assert!(streaming.method.len() <= 20_000);
        check_token(&streaming.token, bytes);
    }
    Ok(())
}

fn piece(bytes: &[u8]) -> Result<(), BadReply> {
    let read = within(BESIDE_BYTES, || reply::chunk(bytes))?;
    assert!(bytes.get(read.body).is_some(), "the body is within the reply");
    if let Some(token) = read.token {
        check_token(&token, bytes);
    }
    Ok(())
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    if bytes.len() > REPLY_BYTES_MAX {
        return;
    }
    let refused = if choice % 2 == 0 { response(bytes) } else { piece(bytes) };
    if let Err(why) = refused {
        assert!(why.to_string().len() < 300);
    }
}
