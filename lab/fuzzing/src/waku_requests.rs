//! A request as a client of the relay sends it: what decodes is written again to bytes that decode
//! to the same. The first byte selects the protocol of the rest.

use bytes::Bytes;
use protocol::{filter, frame, light_push, metadata, peer_exchange, request_id, store, sync};

use crate::allocated::decoding;

macro_rules! again {
    ($bytes:expr, $request:ty) => {{
        let input = $bytes;
        if let Ok(request) = decoding(input.len(), || <$request>::decode(input)) {
            let written = request.encode();
            assert_eq!(<$request>::decode(written.into()).expect("it was written here"), request);
        }
    }};
}

pub(crate) fn test_one_input(bytes: &[u8]) {
    let Some((selector, rest)) = bytes.split_first() else { return };
    let rest = Bytes::copy_from_slice(rest);
    // The text of a refusal, whether the request decodes or not.
    assert!(request_id(&rest).len() <= protocol::REQUEST_ID_BYTES_MAX);
    match selector % 9 {
        0 => again!(rest, light_push::Request),
        1 => again!(rest, light_push::RequestV2),
        2 => again!(rest, filter::Request),
        3 => again!(rest, store::Request),
        4 => again!(rest, metadata::Metadata),
        5 => again!(rest, peer_exchange::Request),
        7 => reconciliation(rest),
        8 => transfer(rest),
        _ => {
            if let Ok(Some((length, used))) = frame::decode_length(&rest, 1 << 20) {
                assert!(length <= 1 << 20 && used <= rest.len());
                let short = frame::encode_length(length);
                assert_eq!(frame::decode_length(&short, 1 << 20), Ok(Some((length, short.len()))));
            }
        }
    }
}

/// Every range of a payload is written again as it was read.
fn reconciliation(bytes: Bytes) {
    let Ok(payload) = sync::Payload::decode(bytes) else { return };
    let Some(Ok(first)) = payload.ranges().next() else { return };
    let texts = |topics: &[protocol::Text]| -> Vec<String> {
        topics.iter().map(|topic| topic.as_str().to_owned()).collect()
    };
    let (pubsub, content) = (texts(&payload.pubsub_topics), texts(&payload.content_topics));
    let mut writer = sync::PayloadWriter::new(&pubsub, &content, first.from.time_ns);
    let mut compared = Vec::new();
    for range in payload.ranges().map_while(Result::ok) {
        match &range.content {
            sync::Content::Skip => writer.skip(range.to),
            sync::Content::Fingerprint(fingerprint) => writer.fingerprint(range.to, fingerprint),
            sync::Content::Items(items) => {
                let ids: Vec<sync::SyncId> = items.ids().collect();
                assert_eq!(ids.len(), items.count());
                writer.items(range.to, &ids, items.settled);
            }
        }
        compared.extend(said(&range));
    }
    let again = sync::Payload::decode(writer.finish().into()).expect("it was written here");
    let ranges = again.ranges().map(|range| range.expect("it was written here"));
    assert_eq!(ranges.filter_map(|range| said(&range)).collect::<Vec<_>>(), compared);
}

/// A range that has something to compare: its last id, its fingerprint, its ids, whether they are
/// settled. A number may have been written longer than it has to be.
type RangeSummary = (sync::SyncId, Option<sync::Fingerprint>, Vec<sync::SyncId>, bool);

fn said(range: &sync::Range) -> Option<RangeSummary> {
    match &range.content {
        sync::Content::Skip => None,
        sync::Content::Fingerprint(fingerprint) => {
            Some((range.to, Some(*fingerprint), Vec::new(), false))
        }
        sync::Content::Items(items) => Some((range.to, None, items.ids().collect(), items.settled)),
    }
}

fn transfer(bytes: Bytes) {
    let Ok(transfer) = decoding(bytes.len(), || sync::Transfer::decode(bytes.clone())) else {
        return;
    };
    let frame = sync::transfer_frame(transfer.message.len(), &transfer.pubsub_topic);
    let whole = frame.around(&transfer.message);
    let (length, used) = frame::decode_length(&whole, whole.len()).expect("short").expect("whole");
    assert_eq!(length + used, whole.len());
    let body = Bytes::copy_from_slice(whole.get(used..).unwrap_or_default());
    assert_eq!(sync::Transfer::decode(body).expect("it was written here"), transfer);
}
