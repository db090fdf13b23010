//! Reading of the gossip RPC. See the module above for what is refused and what is skipped.

use bytes::Bytes;

use super::{
    IHave, Limits, MessageId, PEER_ID_BYTES_MAX, PEER_RECORD_BYTES_MAX, Prune, PrunePeer, Publish,
    RPC_BYTES_MAX, Rpc, Subscription, tag,
};
use crate::text::{self, Text};
use crate::wire::{DecodeError, Field, Fields, for_each_field};

impl Rpc {
    /// Reads an RPC without its length prefix, of which entries beyond `limits` are skipped.
    /// Errors: damaged.
    pub fn decode(input: Bytes, limits: &Limits) -> Result<Self, DecodeError> {
        let mut reader = Reader {
            input: &input,
            limits,
            rpc: Self::default(),
            ids_left: limits.ids,
            peers_left: limits.peers,
        };
        for_each_field!(field in &input, {
            tag::SUBSCRIPTION => reader.subscription(field.bytes()?)?,
            tag::PUBLISH => reader.publish(field.bytes()?)?,
            // Protobuf merges a message that comes twice, and so does this.
            tag::CONTROL => reader.control(field.bytes()?)?,
        });
        Ok(reader.rpc)
    }
}

struct Reader<'a> {
    input: &'a Bytes,
    limits: &'a Limits,
    rpc: Rpc,
    ids_left: usize,
    peers_left: usize,
}

impl Reader<'_> {
    fn subscription(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut subscribe = false;
        let mut topic = None;
        for_each_field!(field in body, {
            tag::SUBSCRIBE => subscribe = field.bool()?,
            tag::SUBSCRIBE_TOPIC => topic = self.topic(&field)?,
        });
        let Some(topic) = topic else { return self.skip_entry() };
        let subscription = Subscription { topic, subscribe };
        let is_kept =
            push_within(&mut self.rpc.subscriptions, subscription, self.limits.subscriptions);
        self.count(is_kept)
    }

    fn publish(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut topic = None;
        let mut data = Bytes::new();
        let mut signed = false;
        for_each_field!(field in body, {
            tag::DATA => data = field.shared(self.input, "data", RPC_BYTES_MAX)?,
            tag::TOPIC => topic = self.topic(&field)?,
            tag::FROM | tag::SEQNO | tag::SIGNATURE | tag::KEY => {
                field.bytes()?;
                signed = true;
            },
        });
        let Some(topic) = topic.filter(|_| !data.is_empty()) else { return self.skip_entry() };
        let publish = Publish { topic, data, signed };
        if !push_within(&mut self.rpc.publish, publish, self.limits.publish) {
            self.rpc.skipped.messages += 1;
        }
        Ok(())
    }

    fn control(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        for_each_field!(field in body, {
            tag::IHAVE => self.ihave(field.bytes()?)?,
            tag::IWANT => {
                let mut ids = std::mem::take(&mut self.rpc.iwant);
                self.ids(field.bytes()?, &mut ids)?;
                self.rpc.iwant = ids;
            },
            tag::GRAFT => self.graft(field.bytes()?)?,
            tag::PRUNE => self.prune(field.bytes()?)?,
            tag::IDONTWANT => {
                let mut ids = std::mem::take(&mut self.rpc.idontwant);
                self.ids(field.bytes()?, &mut ids)?;
                self.rpc.idontwant = ids;
            },
        });
        Ok(())
    }

    fn ihave(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut topic = None;
        let mut ids = Vec::new();
        for_each_field!(field in body, {
            tag::CONTROL_TOPIC => topic = self.topic(&field)?,
            tag::IHAVE_IDS => self.id(&field, &mut ids)?,
        });
        let Some(topic) = topic else { return self.skip_entry() };
        if ids.is_empty() {
            return self.skip_entry();
        }
        let ihave = IHave { topic, ids };
        let is_kept = push_within(&mut self.rpc.ihave, ihave, self.limits.topics);
        self.count(is_kept)
    }

    fn graft(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut topic = None;
        for field in Fields::new(body) {
            let field = field?;
            if field.tag == tag::CONTROL_TOPIC {
                topic = self.topic(&field)?;
            }
        }
        let Some(topic) = topic else { return self.skip_entry() };
        let is_kept = push_within(&mut self.rpc.graft, topic, self.limits.topics);
        self.count(is_kept)
    }

    fn prune(&mut self, body: &[u8]) -> Result<(), DecodeError> {
        let mut topic = None;
        let mut backoff_s = None;
        let mut peers = Vec::new();
        for_each_field!(field in body, {
            tag::CONTROL_TOPIC => topic = self.topic(&field)?,
            tag::PRUNE_BACKOFF => backoff_s = Some(field.varint()?),
            tag::PRUNE_PEERS => self.peer(field.bytes()?, &mut peers)?,
        });
        let Some(topic) = topic else { return self.skip_entry() };
        let prune = Prune { topic, backoff_s, peers };
        let is_kept = push_within(&mut self.rpc.prune, prune, self.limits.topics);
        self.count(is_kept)
    }

    fn peer(&mut self, body: &[u8], peers: &mut Vec<PrunePeer>) -> Result<(), DecodeError> {
        if self.peers_left == 0 {
            self.rpc.skipped.over_limit += 1;
            return Ok(());
        }
        let mut peer_id = Bytes::new();
        let mut signed_record = None;
        for_each_field!(field in body, {
            tag::PEER_ID => peer_id = self.input.slice_ref(field.bytes()?),
            tag::PEER_RECORD => signed_record = Some(self.input.slice_ref(field.bytes()?)),
        });
        let record_bytes = signed_record.as_ref().map_or(0, Bytes::len);
        if peer_id.is_empty()
            || peer_id.len() > PEER_ID_BYTES_MAX
            || record_bytes > PEER_RECORD_BYTES_MAX
        {
            return self.skip_entry();
        }
        self.peers_left -= 1;
        peers.push(PrunePeer { peer_id, signed_record });
        Ok(())
    }

    fn ids(&mut self, body: &[u8], ids: &mut Vec<MessageId>) -> Result<(), DecodeError> {
        for field in Fields::new(body) {
            let field = field?;
            if field.tag == tag::IDS {
                self.id(&field, ids)?;
            }
        }
        Ok(())
    }

    fn id(&mut self, field: &Field<'_>, ids: &mut Vec<MessageId>) -> Result<(), DecodeError> {
        match <[u8; 32]>::try_from(field.bytes()?) {
            Err(_) => self.rpc.skipped.odd_ids += 1,
            Ok(_) if self.ids_left == 0 => self.rpc.skipped.over_limit += 1,
            Ok(id) => {
                self.ids_left -= 1;
                ids.push(MessageId(id));
            }
        }
        Ok(())
    }

    /// A usable topic, or nothing. Errors: the field is not text by its wire type.
    fn topic(&self, field: &Field<'_>) -> Result<Option<Text>, DecodeError> {
        field.bytes()?;
        let topic = text::read_pubsub_topic(self.input, field).ok();
        Ok(topic.filter(|topic| !topic.is_empty()))
    }

    /// Counts an entry that a limit left out.
    fn count(&mut self, is_kept: bool) -> Result<(), DecodeError> {
        self.rpc.skipped.over_limit += usize::from(!is_kept);
        Ok(())
    }

    fn skip_entry(&mut self) -> Result<(), DecodeError> {
        self.rpc.skipped.entries += 1;
        Ok(())
    }
}

/// Pushes an entry unless there are `most`; whether it did.
fn push_within<T>(list: &mut Vec<T>, entry: T, most: usize) -> bool {
    let has_room = list.len() < most;
    if has_room {
        list.push(entry);
    }
    has_room
}
