//! Bounds of what peers send, before and while it is decoded.
//!
//! A message that does not decode, or is longer than any honest one, was not made by this program:
//! its sender is blamed.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};

/// Version of all messages between members, blocks included. Members send each other their version
/// in their first message, with their limits, and a member whose version differs from most ends
/// with an error.
pub(super) const VERSION: u64 = 2;
/// Its name among the limits.
pub(super) const VERSION_NAME: &str = "messages.version";

/// A list that is refused while it is decoded if it has more than `MAX` elements, so that a short
/// message never becomes a long list in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct BoundedVec<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for BoundedVec<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "at most {MAX} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Vec<T>, A::Error> {
                let announced = sequence.size_hint().unwrap_or_default();
                if announced > MAX {
                    return Err(A::Error::invalid_length(announced, &self));
                }
                let mut elements = Vec::new();
                while let Some(element) = sequence.next_element()? {
                    if elements.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(elements)
            }
        }

        deserializer.deserialize_seq(Elements::<T, MAX>(PhantomData)).map(Self)
    }
}

/// The bytes of a message. None where it cannot be encoded, which is a defect: nothing is sent then,
/// because a peer is cut off for what does not decode.
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
        type Three = BoundedVec<u8, 3>;
        let three = BoundedVec::<u8, 3>(vec![1, 2, 3]);
        let bytes = postcard::to_stdvec(&three).unwrap();
        assert_eq!(decode::<Three>(&bytes, 4), Some(three));
        assert_eq!(decode::<Three>(&bytes, 3), None, "longer than any honest one");
        assert_eq!(decode::<Three>(&[&bytes[..], &[0]].concat(), 9), None, "something follows");
        assert_eq!(decode::<Three>(&postcard::to_stdvec(&vec![0_u8; 4]).unwrap(), 9), None);
        // Announces 2^32 - 1 elements.
        assert_eq!(decode::<Three>(&[0xff, 0xff, 0xff, 0xff, 0x0f], 9), None);
    }
}
