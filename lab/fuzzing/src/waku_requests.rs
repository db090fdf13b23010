//! A request as a client of the relay sends it: what decodes is written again to bytes that decode
//! to the same. The first byte selects the protocol of the rest.

use bytes::Bytes;
use protocol::{filter, frame, light_push, metadata, peer_exchange, request_id, store};

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
    match selector % 7 {
        0 => again!(rest, light_push::Request),
        1 => again!(rest, light_push::RequestV2),
        2 => again!(rest, filter::Request),
        3 => again!(rest, store::Request),
        4 => again!(rest, metadata::Metadata),
        5 => again!(rest, peer_exchange::Request),
        _ => {
            if let Ok(Some((length, used))) = frame::decode_length(&rest, 1 << 20) {
                assert!(length <= 1 << 20 && used <= rest.len());
                let short = frame::encode_length(length);
                assert_eq!(frame::decode_length(&short, 1 << 20), Ok(Some((length, short.len()))));
            }
        }
    }
}
