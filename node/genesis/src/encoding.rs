//! The files' JSON: read within bounds, written in one form.
//!
//! A file is read only below its maximum size; first its version, so that a file of a later program
//! is called that and not "unknown field"; then all of it, strictly. Long values go from their text
//! straight into bytes, and a list that is too long is refused at the first element too many.

use std::{fmt, marker::PhantomData};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ic_principal::Principal;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeOwned, SeqAccess, Visitor},
};

use crate::GenesisError;

/// Version of every file of the ceremony. A program knows this one only.
pub const VERSION: u32 = 1;

#[derive(Deserialize)]
struct Probe {
    version: u32,
}

/// Reads a file of at most `bytes_max` bytes. `what` names it in errors.
pub(crate) fn read<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    bytes_max: usize,
) -> Result<T, GenesisError> {
    if bytes.len() > bytes_max {
        return Err(GenesisError::TooLarge { what, bytes: bytes.len(), bytes_max });
    }
    let json = |error| GenesisError::Json { what, error };
    let probe: Probe = serde_json::from_slice(bytes).map_err(json)?;
    check_version(what, probe.version)?;
    serde_json::from_slice(bytes).map_err(json)
}

pub(crate) fn check_version(what: &'static str, found: u32) -> Result<(), GenesisError> {
    if found == VERSION { Ok(()) } else { Err(GenesisError::Version { what, found }) }
}

/// The text of a file, with a line break at its end.
pub(crate) fn write(value: &impl Serialize) -> String {
    // Structures of strings, numbers and lists always have a JSON form.
    serde_json::to_string_pretty(value).map_or_else(|_| String::new(), |text| text + "\n")
}

/// Bytes as hexadecimal digits, exactly `N` of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hex<const N: usize>(pub(crate) [u8; N]);

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = format!("{} hexadecimal digits", 2 * N);
        let parse = |text: &str| {
            let mut bytes = [0; N];
            hex::decode_to_slice(text, &mut bytes).ok().map(|()| Self(bytes))
        };
        deserializer.deserialize_str(TextVisitor { expected, parse })
    }
}

/// Bytes as base64: for long values. Bounded by the file.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Blob(pub(crate) Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let parse = |text: &str| STANDARD.decode(text).ok().map(Self);
        deserializer.deserialize_str(TextVisitor { expected: "base64".into(), parse })
    }
}

/// Takes a text, and names its form if it has another.
struct TextVisitor<T> {
    expected: String,
    parse: fn(&str) -> Option<T>,
}

impl<T> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text)
            .ok_or_else(|| E::invalid_value(de::Unexpected::Str(shortened(text)), &self))
    }
}

/// A list that is refused while it is decoded if it has more than `N` elements, so that a short
/// message never becomes a long list in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct BoundedList<T, const N: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for BoundedList<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List<T, const N: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for List<T, N> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {N}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let announced = list.size_hint().unwrap_or_default();
                if announced > N {
                    return Err(de::Error::invalid_length(announced, &self));
                }
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    if elements.len() == N {
                        return Err(de::Error::invalid_length(N + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(elements)
            }
        }
        deserializer.deserialize_seq(List::<T, N>(PhantomData)).map(Self)
    }
}

/// The principal of a text; one principal has one text.
pub(crate) fn principal(text: &str) -> Option<Principal> {
    Principal::from_text(text).ok().filter(|principal| principal.to_text() == text)
}

/// The start of a text that may be long, for an error.
pub(crate) fn shortened(text: &str) -> &str {
    text.char_indices().nth(60).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Deserialize, Serialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        version: u32,
        key: Hex<2>,
        rest: BoundedList<Blob, 2>,
    }

    fn refused(text: &str) -> String {
        read::<File>("the file", text.as_bytes(), 100).err().unwrap().to_string()
    }

    #[test]
    fn file_round_trips() {
        let file = File {
            version: 1,
            key: Hex([1, 255]),
            rest: BoundedList(vec![Blob(vec![1, 2, 3]), Blob(vec![])]),
        };
        let text = write(&file);
        assert!(text.ends_with("}\n") && text.contains("\"01ff\""), "{text}");
        let again: File = read("the file", text.as_bytes(), 1000).unwrap();
        assert!(again.key == file.key && again.rest == file.rest);
    }

    #[test]
    fn refusals_name_what_is_wrong() {
        for (text, words) in [
            (" ".repeat(101).as_str(), "101 bytes; at most 100"),
            ("{", "EOF"),
            (r#"{"key":"0102","rest":[]}"#, "missing field `version`"),
            (r#"{"version":2,"new":1}"#, "version 2"),
            (r#"{"version":1,"key":"0102","rest":[],"more":1}"#, "unknown field `more`"),
            (r#"{"version":1,"key":"01","rest":[]}"#, "4 hexadecimal digits"),
            (r#"{"version":1,"key":"01020304","rest":[]}"#, "4 hexadecimal digits"),
            (r#"{"version":1,"key":"zzzz","rest":[]}"#, "4 hexadecimal digits"),
            (r#"{"version":1,"key":"0102","rest":["*"]}"#, "base64"),
            (r#"{"version":1,"key":"0102","rest":["","",""]}"#, "a list of at most 2"),
            (r#"{"version":1,"key":"0102","rest":[]}x"#, "trailing characters"),
        ] {
            assert!(refused(text).contains(words), "{text}: {}", refused(text));
        }
    }
}
