//! A topic as a peer or an operator writes it: the parsed parts are joined to the same text, and
//! every content topic of the right form has a shard.

use std::num::NonZeroU16;

use protocol::{ContentTopic, MessageHash, PubsubTopic, autoshard};

pub(crate) fn test_one_input(bytes: &[u8]) {
    // Up to the first byte that is no part of a text.
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    if let Ok(topic) = text.parse::<PubsubTopic>() {
        assert_eq!(topic.to_string(), text);
    }
    if let Ok(hash) = text.parse::<MessageHash>() {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        assert_eq!(hash.to_string(), format!("0x{}", digits.to_lowercase()));
    }
    if let Ok(topic) = ContentTopic::parse(text) {
        let ContentTopic { application, version, name, encoding } = topic;
        let short = format!("/{application}/{version}/{name}/{encoding}");
        assert!(text == short || text == format!("/0{short}"));
        let shards = NonZeroU16::new(8).expect("it is 8");
        assert!(autoshard(&topic, shards) < 8);
    }
}
