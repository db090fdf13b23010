//! Waku messages in JSON: as clients send them, and as they are returned.
//!
//! A payload is in memory twice at most, as base64 text in its request and as bytes of the encoded
//! message: the text is decoded directly into its place there. Bounds: the request's body;
//! [`NAMES_MAX`] for lists of names. It must never know topics' shards.
//!
//! Source: `WakuMessage` and `RelayWakuMessage` of the OpenAPI files in waku-org/waku-rest-api.

use std::{borrow::Cow, fmt, io};

use base64::{
    Engine, alphabet,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig, general_purpose::STANDARD},
};
use bytes::Bytes;
use protocol::{Text, WakuMessage, wire};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, SeqAccess, Visitor},
};

/// Names in one list: topics to subscribe to, peers to connect to.
pub(crate) const NAMES_MAX: usize = 256;
const PAYLOAD_TAG: u32 = 1;
/// Bytes of an encoded message in addition to its texts and byte strings.
const FIELDS_BYTES_MAX: usize = 80;
/// Bytes of the JSON of a message in addition to its texts and byte strings.
const JSON_FIELDS_BYTES_MAX: usize = 256;
/// Bytes of JSON for one byte of text, at most: a control character is written `\u0001`.
const JSON_BYTES_PER_BYTE: usize = 6;

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const PLAIN: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);

/// Text, borrowed from the request where possible.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Name<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// A message as a client sends it. As at reference nodes a field that is not known, one that is
/// there twice, and `null` are refused: a misspelt field would otherwise be lost without a word.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct MessageJson<'a> {
    #[serde(borrow)]
    payload: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    content_topic: Option<Name<'a>>,
    #[serde(default, deserialize_with = "present")]
    version: Option<u32>,
    #[serde(default, deserialize_with = "present")]
    timestamp: Option<i64>,
    #[serde(borrow, default, deserialize_with = "present")]
    meta: Option<Name<'a>>,
    #[serde(default, deserialize_with = "present")]
    ephemeral: Option<bool>,
    #[serde(borrow, default, deserialize_with = "present")]
    proof: Option<Name<'a>>,
}

/// A field that may be absent, and is no `null` where it is there.
pub(crate) fn present<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(deserializer).map(Some)
}

impl MessageJson<'_> {
    /// As it is stated; blank means that it is not.
    pub(crate) fn content_topic(&self) -> Option<&str> {
        self.content_topic.as_ref().map(|topic| &*topic.0).filter(|topic| !topic.trim().is_empty())
    }

    /// The most bytes that [`MessageJson::encode`] takes.
    pub(crate) fn encoded_bytes_max(&self, content_topic: &str) -> usize {
        let decoded = |text: &str| text.len() / 4 * 3 + 3;
        let optional = |text: &Option<Name<'_>>| text.as_ref().map_or(0, |text| decoded(&text.0));
        decoded(&self.payload)
            + content_topic.len()
            + optional(&self.meta) * 2
            + optional(&self.proof) * 2
            + FIELDS_BYTES_MAX
    }

    /// The encoded message. One without a time gets `now_ns`, as other nodes give it. Errors: which
    /// field is not base64.
    pub(crate) fn encode(&self, content_topic: &str, now_ns: i64) -> Result<Vec<u8>, String> {
        let bytes_max = self.encoded_bytes_max(content_topic);
        let mut out = Vec::with_capacity(bytes_max);
        let payload = self.payload.trim_end_matches('=');
        let length = payload.len() / 4 * 3 + payload.len() % 4 * 3 / 4;
        if length > 0 {
            wire::put_bytes_head(PAYLOAD_TAG, length, &mut out);
            let from = out.len();
            out.resize(from + length, 0);
            let place = out.get_mut(from..).unwrap_or_default();
            let engine = engine_for(payload);
            match engine.decode_slice(payload, place) {
                Ok(decoded) if decoded == length => {}
                _ => return Err("payload is not base64".into()),
            }
        } else if !payload.is_empty() {
            return Err("payload is not base64".into());
        }
        let bytes = |field: &'static str, text: &Option<Name<'_>>| match text {
            None => Ok(None),
            Some(text) => {
                let bytes = decode(&text.0).ok_or(format!("{field} is not base64"))?;
                Ok::<_, String>(Some(Bytes::from(bytes)).filter(|bytes| !bytes.is_empty()))
            }
        };
        let rest = WakuMessage {
            payload: Bytes::new(),
            content_topic: Text::from(content_topic),
            version: self.version,
            timestamp: Some(self.timestamp.filter(|at| *at != 0).unwrap_or(now_ns)),
            meta: bytes("meta", &self.meta)?,
            rate_limit_proof: bytes("proof", &self.proof)?,
            ephemeral: self.ephemeral,
        };
        out.extend_from_slice(&rest.encode());
        debug_assert!(out.len() <= bytes_max, "{} of {bytes_max} bytes", out.len());
        Ok(out)
    }
}

fn engine_for(text: &str) -> &'static GeneralPurpose {
    static ENGINES: [GeneralPurpose; 2] = [PLAIN, URL_SAFE];
    let [plain, url_safe] = &ENGINES;
    if text.contains(['-', '_']) { url_safe } else { plain }
}

/// Bytes of base64, of either alphabet, padded or not.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    engine_for(text).decode(text).ok()
}

/// The most bytes that JSON of a message takes, from those of the encoded message.
pub(crate) fn json_bytes_max(encoded: usize) -> usize {
    // Base64 makes four of three; the content topic is text.
    encoded.div_ceil(3) * 4
        + protocol::topic::CONTENT_TOPIC_BYTES_MAX * JSON_BYTES_PER_BYTE
        + JSON_FIELDS_BYTES_MAX
}

/// The most bytes that a text takes in JSON.
pub(crate) fn json_text_bytes_max(text: &str) -> usize {
    text.len() * JSON_BYTES_PER_BYTE + 2
}

/// Appends a text with its quotes.
pub(crate) fn put_text(text: &str, out: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(out, text).map_err(io::Error::other)
}

pub(crate) fn put_message(message: &WakuMessage, out: &mut Vec<u8>) -> io::Result<()> {
    use io::Write;
    out.extend_from_slice(b"{\"payload\":");
    put_base64(&message.payload, out)?;
    out.extend_from_slice(b",\"contentTopic\":");
    put_text(message.content_topic.as_str(), out)?;
    write!(
        out,
        ",\"version\":{},\"timestamp\":{},\"ephemeral\":{}",
        message.version.unwrap_or(0),
        message.timestamp.unwrap_or(0),
        message.is_ephemeral()
    )?;
    for (name, bytes) in [("meta", &message.meta), ("proof", &message.rate_limit_proof)] {
        if let Some(bytes) = bytes {
            write!(out, ",\"{name}\":")?;
            put_base64(bytes, out)?;
        }
    }
    out.push(b'}');
    Ok(())
}

fn put_base64(bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    out.push(b'"');
    let from = out.len();
    out.resize(from + bytes.len().div_ceil(3) * 4, 0);
    let place = out.get_mut(from..).unwrap_or_default();
    STANDARD.encode_slice(bytes, place).map_err(io::Error::other)?;
    out.push(b'"');
    Ok(())
}

/// A list of at most [`NAMES_MAX`] texts.
#[derive(Debug)]
pub(crate) struct Names<'a>(pub(crate) Vec<Name<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Names<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Names<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {NAMES_MAX} texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Names<'de>, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element::<Name<'de>>()? {
                    if names.len() >= NAMES_MAX {
                        return Err(A::Error::custom(format!(
                            "the list has more than {NAMES_MAX} entries; split it"
                        )));
                    }
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TOPIC: &str = "/app/1/name/proto";

    fn encoded(json: &str) -> Result<WakuMessage, String> {
        let message: MessageJson<'_> =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        let topic = message.content_topic().unwrap_or(TOPIC).to_owned();
        let bytes = message.encode(&topic, 77)?;
        WakuMessage::read(&bytes.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_message_may_have_a_payload_alone() {
        let message = encoded(r#"{"payload":"aGVsbG8="}"#).unwrap();
        assert_eq!(&message.payload[..], b"hello");
        assert_eq!((message.content_topic.as_str(), message.timestamp), (TOPIC, Some(77)));
        assert_eq!((message.version, message.meta, message.ephemeral), (None, None, None));
    }

    #[test]
    fn base64_is_taken_in_either_alphabet_padded_or_not_and_escaped() {
        for payload in ["+/8=", "+/8", "-_8=", "-_8", r"+\/8="] {
            let message = encoded(&format!(r#"{{"payload":"{payload}"}}"#)).unwrap();
            assert_eq!(&message.payload[..], [0xfb, 0xff], "{payload}");
        }
        for damaged in ["a", "====a", "aGVsbG8=aGVsbG8=", "aGVs bG8=", "ä", "aGVsbA=b"] {
            let error = encoded(&format!(r#"{{"payload":"{damaged}"}}"#)).unwrap_err();
            assert!(error.contains("payload"), "{damaged}: {error}");
        }
        assert_eq!(encoded(r#"{"payload":""}"#).unwrap().payload.len(), 0);
    }

    #[test]
    fn missing_or_mistyped_field_is_named() {
        assert!(encoded("{}").unwrap_err().contains("payload"));
        assert!(encoded(r#"{"payload":"","timestamp":"x"}"#).unwrap_err().contains("i64"));
        assert!(encoded(r#"{"payload":"","version":-1}"#).unwrap_err().contains("u32"));
        assert!(encoded(r#"{"payload":"","meta":"!"}"#).unwrap_err().contains("meta"));
    }

    #[test]
    fn unknown_repeated_and_null_fields_are_refused_by_their_name() {
        for (json, why) in [
            (r#"{"payload":"","more":[1]}"#, "unknown field `more`"),
            (r#"{"payload":"","contenttopic":"/a/1/b/c"}"#, "unknown field `contenttopic`"),
            (r#"{"payload":"","payload":""}"#, "duplicate field `payload`"),
            (r#"{"payload":null}"#, "null"),
            (r#"{"payload":"","timestamp":null}"#, "null"),
            (r#"{"payload":"","contentTopic":null}"#, "null"),
            (r#"{"payload":"","meta":null}"#, "null"),
            (r#"{"payload":"","ephemeral":null}"#, "null"),
        ] {
            let error = encoded(json).unwrap_err();
            assert!(error.contains(why), "{json}: {error}");
        }
    }

    #[test]
    fn a_blank_content_topic_is_none() {
        let topic = |json: &str| {
            let message: MessageJson<'_> = serde_json::from_str(json).unwrap();
            message.content_topic().map(str::to_owned)
        };
        assert_eq!(topic(r#"{"payload":""}"#), None);
        assert_eq!(topic(r#"{"payload":"","contentTopic":" \t"}"#), None);
        assert_eq!(topic(r#"{"payload":"","contentTopic":" a"}"#).as_deref(), Some(" a"));
    }

    #[test]
    fn a_list_of_names_is_bounded() {
        let list = |count: usize| {
            let text = serde_json::to_string(&vec!["n"; count]).unwrap();
            serde_json::from_str::<Names<'_>>(&text)
                .map(|names| names.0.len())
                .map_err(|e| e.to_string())
        };
        assert_eq!(list(NAMES_MAX), Ok(NAMES_MAX));
        assert!(list(NAMES_MAX + 1).unwrap_err().contains("256"));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            payload in proptest::collection::vec(any::<u8>(), 0..2000),
            topic in "\\PC{1,40}".prop_filter("a blank one is none", |it| !it.trim().is_empty()),
            version in proptest::option::of(any::<u32>()),
            timestamp in any::<i64>().prop_filter("0 is replaced", |at| *at != 0),
            meta in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..64)),
            proof in proptest::option::of(proptest::collection::vec(any::<u8>(), 1..300)),
            ephemeral in proptest::option::of(any::<bool>()),
        ) {
            let message = WakuMessage {
                payload: payload.into(),
                content_topic: Text::from(topic.as_str()),
                version,
                timestamp: Some(timestamp),
                meta: meta.map(Bytes::from),
                rate_limit_proof: proof.map(Bytes::from),
                ephemeral,
            };
            let mut json = Vec::new();
            put_message(&message, &mut json).unwrap();
            prop_assert!(json.len() <= json_bytes_max(message.encoded_len()));
            let read: MessageJson<'_> = serde_json::from_slice(&json).unwrap();
            let bytes = read.encode(read.content_topic().unwrap(), 1).unwrap();
            prop_assert!(bytes.len() <= read.encoded_bytes_max(&topic));
            let expected = WakuMessage {
                version: Some(message.version.unwrap_or(0)),
                ephemeral: Some(message.is_ephemeral()),
                ..message
            };
            prop_assert_eq!(WakuMessage::read(&bytes.into()).unwrap(), expected);
        }
    }
}
