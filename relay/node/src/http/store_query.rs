//! The parameters of `GET /store/v3/messages`.
//!
//! Hashes are `0x` and 64 hexadecimal digits, as reference nodes write them, or base64, as the
//! specification's text requires. Bounds: the head of a request. It must never know the store,
//! beyond the definition of a query.

use libp2p::Multiaddr;
use protocol::{MessageHash, store::PAGE_MAX};
use store::Query;

use super::{message::decode, routes::percent_decoded};

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryParameters {
    /// The peer whose messages are queried; this node's when absent.
    pub(crate) peer: Option<Multiaddr>,
    pub(crate) include_data: bool,
    pub(crate) query: Query,
}

/// Reads the parameters of a query. Errors: which cannot be read.
pub(crate) fn parse(query: &str) -> Result<QueryParameters, String> {
    let mut asked = QueryParameters {
        query: Query { forward: true, ..Query::default() },
        ..QueryParameters::default()
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        // A topic may have been encoded as a field of a form; in base64 a plus is a digit.
        let form = matches!(name, "pubsubTopic" | "contentTopics");
        let value = percent_decoded(value, form)
            .ok_or_else(|| format!("{name} is not percent-encoded UTF-8"))?;
        if value.is_empty() {
            continue;
        }
        let query = &mut asked.query;
        match name {
            "peerAddr" => {
                asked.peer = Some(
                    value.parse().map_err(|error| format!("peerAddr is no address: {error}"))?,
                );
            }
            "includeData" => {
                asked.include_data = match value.to_ascii_lowercase().as_str() {
                    "true" | "1" | "yes" | "on" => true,
                    "false" | "0" | "no" | "off" => false,
                    _ => return Err("includeData is neither true nor false".into()),
                };
            }
            "pubsubTopic" => query.pubsub_topic = Some(value),
            "contentTopics" => query.content_topics.extend(value.split(',').map(str::to_owned)),
            "startTime" => query.start_ns = time(name, &value)?,
            // The interface includes the end, the store does not.
            "endTime" => query.end_ns = time(name, &value)?.map(|end| end.saturating_add(1)),
            "hashes" => {
                for text in value.split(',') {
                    query.hashes.push(hash(name, text)?);
                }
            }
            "cursor" => query.cursor = Some(hash(name, &value)?),
            "pageSize" => {
                let size: u64 = value.parse().map_err(|_| "pageSize is no number".to_owned())?;
                query.limit = usize::try_from(size).unwrap_or(PAGE_MAX).min(PAGE_MAX);
            }
            // An unreadable value means the default here, per the specification.
            "ascending" => query.forward = !value.eq_ignore_ascii_case("false"),
            _ => {}
        }
    }
    Ok(asked)
}

/// Nanoseconds since 1970; zero and less mean that there is no bound.
fn time(name: &str, value: &str) -> Result<Option<i64>, String> {
    let time: i64 =
        value.parse().map_err(|_| format!("{name} is no number of nanoseconds since 1970"))?;
    Ok((time > 0).then_some(time))
}

fn hash(name: &str, text: &str) -> Result<[u8; 32], String> {
    let hash = match text.parse::<MessageHash>() {
        Ok(hash) => Some(hash.0),
        Err(_) => decode(text).and_then(|bytes| bytes.try_into().ok()),
    };
    hash.ok_or_else(|| {
        format!("{name}: a message hash is 64 hexadecimal digits, or base64 of 32 bytes")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_the_specification_has_them() {
        let asked = parse(
            "peerAddr=&includeData=true&pubsubTopic=%2Fwaku%2F2%2Frs%2F16%2F32\
             &contentTopics=%2Fa%2F1%2Fb%2Fc%2C%2Fd%2F1%2Fe+e%2Ff&startTime=5&endTime=9\
             &pageSize=500&ascending=false&unknown=1",
        )
        .unwrap();
        let query = Query {
            pubsub_topic: Some("/waku/2/rs/16/32".into()),
            content_topics: vec!["/a/1/b/c".into(), "/d/1/e e/f".into()],
            start_ns: Some(5),
            end_ns: Some(10),
            limit: 100,
            ..Query::default()
        };
        assert_eq!(asked, QueryParameters { peer: None, include_data: true, query });
        let nothing = parse("").unwrap();
        assert!(nothing.query.forward && !nothing.include_data && nothing.query.limit == 0);
        assert!(parse("ascending=perhaps&startTime=0").unwrap().query.forward);
    }

    #[test]
    fn hashes_are_read_in_both_ways_of_writing() {
        let hex = MessageHash([0xfb; 32]).to_string();
        let base64 = "%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%2Fv7%2B%\
                      2Fv7%2B%2Fs%3D";
        let asked = parse(&format!("hashes={hex},{base64}&cursor={hex}")).unwrap();
        assert_eq!(asked.query.hashes, [[0xfb; 32]; 2]);
        assert_eq!(asked.query.cursor, Some([0xfb; 32]));
    }

    #[test]
    fn unreadable_parameter_is_named() {
        for (query, name) in [
            ("startTime=yesterday", "startTime"),
            ("hashes=0x12", "hashes"),
            ("cursor=%", "cursor"),
            ("pageSize=-1", "pageSize"),
            ("includeData=perhaps", "includeData"),
            ("peerAddr=here", "peerAddr"),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.contains(name), "{query}: {error}");
        }
    }
}
