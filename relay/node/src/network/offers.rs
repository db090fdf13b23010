//! What a peer serves, as it said by identify.

/// A protocol that this node asks others by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// Names other peers.
    Exchange,
    Store,
    LightPush,
    LightPushV2,
    Filter,
    /// Compares its store with others'.
    Sync,
}

/// Each with the name of its protocol.
const NAMES: [(Offer, &str); 6] = [
    (Offer::Exchange, protocol::peer_exchange::PROTOCOL),
    (Offer::Store, protocol::store::PROTOCOL),
    (Offer::LightPush, protocol::light_push::PROTOCOL),
    (Offer::LightPushV2, protocol::light_push::PROTOCOL_V2),
    (Offer::Filter, protocol::filter::SUBSCRIBE_PROTOCOL),
    (Offer::Sync, protocol::sync::RECONCILIATION_PROTOCOL),
];

impl Offer {
    /// The offer that a protocol is, if it is one.
    pub(crate) fn of(protocol: &str) -> Option<Self> {
        NAMES.iter().find(|(_, name)| *name == protocol).map(|(offer, _)| *offer)
    }

    /// The name of its protocol.
    pub(crate) fn protocol(self) -> &'static str {
        NAMES.iter().find(|(offer, _)| *offer == self).map_or("", |(_, name)| *name)
    }
}

/// The offers of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offers(u8);

impl Offers {
    pub(crate) fn add(&mut self, offer: Offer) {
        self.0 |= 1 << offer as u8;
    }

    pub(crate) fn has(self, offer: Offer) -> bool {
        self.0 & (1 << offer as u8) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offer_has_a_protocol_and_a_bit_of_its_own() {
        let mut offers = Offers::default();
        for (offer, name) in NAMES {
            assert_eq!(Offer::of(name), Some(offer));
            assert_eq!(offer.protocol(), name);
            assert!(!offers.has(offer));
            offers.add(offer);
        }
        assert_eq!(Offer::of(protocol::gossip::PROTOCOL), None);
    }
}
