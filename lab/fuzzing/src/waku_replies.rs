//! A reply or a push as a client of a relay reads it (the stress driver is one): what decodes is
//! written again to bytes that decode to the same, around its messages too. The first byte says
//! of which protocol the rest is.

use bytes::Bytes;
use protocol::{filter, frame::with_length, light_push, peer_exchange, store};

use crate::allocated::decoding;

macro_rules! again {
    ($bytes:expr, $reply:ty) => {{
        let input = $bytes;
        if let Ok(reply) = decoding(input.len(), || <$reply>::decode(input)) {
            let written = reply.encode();
            assert_eq!(<$reply>::decode(written.into()).expect("it was written here"), reply);
        }
    }};
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((selector, rest)) = bytes.split_first() else { return };
    let rest = Bytes::copy_from_slice(rest);
    match selector % 6 {
        0 => again!(rest, light_push::Reply),
        1 => again!(rest, light_push::ReplyV2),
        2 => again!(rest, filter::Reply),
        3 => again!(rest, peer_exchange::Reply),
        4 => {
            let Ok(push) = decoding(rest.len(), || filter::Push::decode(rest)) else { return };
            let written = push.encode();
            assert_eq!(filter::Push::decode(written.clone().into()), Ok(push.clone()));
            if let Some(topic) = &push.pubsub_topic {
                let split = filter::push_frame(push.message.len(), topic);
                assert_eq!(split.around(&push.message), with_length(&written));
            }
        }
        _ => {
            let Ok(reply) = decoding(rest.len(), || store::Reply::decode(rest)) else { return };
            let written = reply.encode();
            assert_eq!(store::Reply::decode(written.clone().into()), Ok(reply.clone()));
            let mut entries = Vec::new();
            let mut entries_bytes = 0;
            for entry in &reply.entries {
                let message_bytes = entry.message.as_ref().map(Bytes::len);
                let topic = entry.pubsub_topic.as_deref();
                let parts = store::entry_parts(&entry.hash, message_bytes, topic);
                entries.extend(parts.around(entry.message.as_deref().unwrap_or_default()));
                entries_bytes += store::entry_len(message_bytes, topic);
            }
            let text = reply.status_text.as_deref();
            let cursor = reply.cursor.as_ref();
            let split =
                store::reply_frame(&reply.request_id, reply.status, text, entries_bytes, cursor);
            assert_eq!(split.around(&entries), with_length(&written));
        }
    }
}
