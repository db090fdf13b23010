//! Bounds of what peers send, before and while it is decoded.
//!
//! A message that does not decode, or is longer than any honest one, was not made by this program:
//! its sender is blamed.

pub(super) use genesis::BoundedList;
use serde::{Deserialize, Serialize};

/// Version of all messages between members, blocks included. Members send each other their version
/// in their first message, with their limits, and a member whose version differs from most ends
/// with an error.
pub(super) const VERSION: u64 = 3;
/// Its name among the limits.
pub(super) const VERSION_NAME: &str = "messages.version";

/// The bytes of a message. None where it cannot be encoded, which is a defect: nothing is sent
/// then, because a peer is cut off for what does not decode.
pub(super) fn encode(message: &impl Serialize, what: &str) -> Option<Vec<u8>> {
    postcard::to_allocvec(message)
        .inspect_err(|error| tracing::error!(%error, "{what} cannot be encoded"))
        .ok()
}

/// Encoded messages of a channel, with their names.
#[cfg(test)]
pub(super) fn samples<const N: usize>(
    messages: [(&'static str, impl Serialize); N],
) -> Vec<(&'static str, Vec<u8>)> {
    messages.map(|(name, message)| (name, postcard::to_stdvec(&message).unwrap_or_default())).into()
}

/// What a peer's message says, if it is no longer than `bytes_max` and nothing follows it.
pub(super) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], bytes_max: usize) -> Option<T> {
    if bytes.len() > bytes_max {
        return None;
    }
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    // Promise: P18 - A message between members has bounded lists and no trailing bytes.
    #[test]
    fn a_list_is_refused_where_it_is_too_long_and_a_message_where_something_follows() {
        type Three = BoundedList<u8, 3>;
        let three = BoundedList::<u8, 3>(vec![1, 2, 3]);
        let bytes = postcard::to_stdvec(&three).unwrap();
        assert_eq!(decode::<Three>(&bytes, 4), Some(three));
        assert_eq!(decode::<Three>(&bytes, 3), None, "longer than any honest one");
        assert_eq!(decode::<Three>(&[&bytes[..], &[0]].concat(), 9), None, "something follows");
        assert_eq!(decode::<Three>(&postcard::to_stdvec(&vec![0_u8; 4]).unwrap(), 9), None);
        // Announces 2^32 - 1 elements.
        assert_eq!(decode::<Three>(&[0xff, 0xff, 0xff, 0xff, 0x0f], 9), None);
    }
}
