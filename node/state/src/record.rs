//! Records as the store keeps them.

use std::fmt::Display;

use serde::Serialize;
use thiserror::Error;

use crate::state_heap;

/// A record that cannot be written down. Types that are kept have nothing that cannot be encoded,
/// so this is a defect; an empty record in its place would be found at the next start, when the
/// checkpoint before is gone.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the record of {what} cannot be encoded ({reason}); this is a defect of the node: report it"
)]
pub struct NotEncoded {
    /// What the record is of, for the message.
    pub what: String,
    /// The encoder's error.
    pub reason: String,
}

/// The bytes that a checkpoint keeps of `value`.
pub fn encode_record<T: Serialize>(what: impl Display, value: &T) -> Result<Vec<u8>, NotEncoded> {
    // With all its messages, a record may be large.
    let _here = state_heap::enter();
    postcard::experimental::serialized_size(value)
        .and_then(|bytes| postcard::to_extend(value, Vec::with_capacity(bytes)))
        .map_err(|error| NotEncoded { what: what.to_string(), reason: error.to_string() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde::Serializer;

    use super::*;

    struct Unwritable;

    impl Serialize for Unwritable {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }

    #[test]
    fn what_cannot_be_encoded_is_no_empty_record() {
        assert_eq!(encode_record("x", &7_u8), Ok(vec![7]));
        let error = encode_record(format_args!("canister {}", 5), &Unwritable).unwrap_err();
        assert!(
            error.to_string().starts_with("the record of canister 5 cannot be encoded"),
            "{error}"
        );
    }
}
