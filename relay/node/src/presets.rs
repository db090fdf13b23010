//! The public networks by name, as the reference implementation has them.
//!
//! Sources: logos-delivery `networks_config.nim` (August 2026; its presets `twn` and
//! `status.prod`), status-go (shards 32 and 64), infra-waku and infra-status (lists in the DNS).

use std::num::NonZeroU16;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::rln::contract::Contract;

const KIB: u64 = 1 << 10;
const EIGHT: NonZeroU16 = NonZeroU16::new(8).expect("not zero");

/// Names of the networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Network {
    /// The Waku Network: cluster 1, 8 shards, messages with proofs of a rate limit (RLN).
    #[value(alias = "twn")]
    Waku,
    /// The network of the Status application: cluster 16, messages up to 1 MiB.
    #[value(alias = "status.prod")]
    Status,
}

impl Network {
    /// As it is written in files and on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Waku => "waku",
            Self::Status => "status",
        }
    }

    pub(crate) fn preset(self) -> &'static Preset {
        match self {
            Self::Waku => &WAKU,
            Self::Status => &STATUS,
        }
    }
}

/// Settings of a network.
#[derive(Debug)]
pub(crate) struct Preset {
    pub(crate) cluster: u16,
    /// Over which content topics are spread.
    pub(crate) shards_in_cluster: NonZeroU16,
    /// Shards that are served; all of `shards_in_cluster` if none is named.
    pub(crate) shards: &'static [u16],
    /// The largest message, where it is not the default.
    pub(crate) message_bytes: Option<u64>,
    /// Whether other nodes are found by the discovery protocol.
    pub(crate) discv5: Option<bool>,
    pub(crate) discv5_bootstrap: &'static [&'static str],
    pub(crate) dns_discovery_urls: &'static [&'static str],
    pub(crate) peers: &'static [&'static str],
}

/// The membership contract of The Waku Network, on Linea Sepolia.
pub(crate) const WAKU_CONTRACT: Contract = Contract {
    chain_id: 59_141,
    address: [
        0xb9, 0xcd, 0x87, 0x8c, 0x90, 0xe4, 0x9f, 0x79, 0x7b, 0x44, 0x31, 0xfb, 0xf4, 0xfb, 0x33,
        0x31, 0x08, 0xcb, 0x90, 0xe6,
    ],
};

/// A network without a name.
pub(crate) static UNNAMED: Preset = Preset {
    cluster: 0,
    shards_in_cluster: EIGHT,
    shards: &[],
    message_bytes: None,
    discv5: None,
    discv5_bootstrap: &[],
    dns_discovery_urls: &[],
    peers: &[],
};

static WAKU: Preset = Preset {
    cluster: 1,
    shards_in_cluster: EIGHT,
    shards: &[],
    message_bytes: Some(150 * KIB),
    discv5: Some(true),
    discv5_bootstrap: &[
        "enr:-QESuED0qW1BCmF-oH_ARGPr97Nv767bl_43uoy70vrbah3EaCAdK3Q0iRQ6wkSTTpdrg_dU_NC2ydO8leSl\
         RpBX4pxiAYJpZIJ2NIJpcIRA4VDAim11bHRpYWRkcnO4XAArNiZub2RlLTAxLmRvLWFtczMud2FrdS5zYW5kYm94L\
         nN0YXR1cy5pbQZ2XwAtNiZub2RlLTAxLmRvLWFtczMud2FrdS5zYW5kYm94LnN0YXR1cy5pbQYfQN4DgnJzkwABCA\
         AAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQOTd-h5owwj-cx7xrmbvQKU8CV3Fomfdvcv1MBc-67T5oN0Y3CCdl-\
         DdWRwgiMohXdha3UyDw",
        "enr:-QEkuED9X80QF_jcN9gA2ZRhhmwVEeJnsg_Hyg7IFCTYnZD0BDI7a8HArE61NhJZFwygpHCWkgwSt2vqiABX\
         kBxzIqZBAYJpZIJ2NIJpcIQiQlleim11bHRpYWRkcnO4bgA0Ni9ub2RlLTAxLmdjLXVzLWNlbnRyYWwxLWEud2Frd\
         S5zYW5kYm94LnN0YXR1cy5pbQZ2XwA2Ni9ub2RlLTAxLmdjLXVzLWNlbnRyYWwxLWEud2FrdS5zYW5kYm94LnN0YX\
         R1cy5pbQYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQPFAS8zz2cg1QQhxMaK8CzkGQ5wdHv\
         PJcrgLzJGOiHpwYN0Y3CCdl-DdWRwgiMohXdha3UyDw",
        "enr:-QEkuEBfEzJm_kigJ2HoSS_RBFJYhKHocGdkhhBr6jSUAWjLdFPp6Pj1l4yiTQp7TGHyu1kC6FyaU573VN8k\
         lLsEm-XuAYJpZIJ2NIJpcIQI2SVcim11bHRpYWRkcnO4bgA0Ni9ub2RlLTAxLmFjLWNuLWhvbmdrb25nLWMud2Frd\
         S5zYW5kYm94LnN0YXR1cy5pbQZ2XwA2Ni9ub2RlLTAxLmFjLWNuLWhvbmdrb25nLWMud2FrdS5zYW5kYm94LnN0YX\
         R1cy5pbQYfQN4DgnJzkwABCAAAAAEAAgADAAQABQAGAAeJc2VjcDI1NmsxoQOwsS69tgD7u1K50r5-qG5hweuTwa0\
         W26aYPnvivpNlrYN0Y3CCdl-DdWRwgiMohXdha3UyDw",
    ],
    dns_discovery_urls: &[
        "enrtree://AIRVQ5DDA4FFWLRBCHJWUWOO6X6S4ZTZ5B667LQ6AJU6PEYDLRD5O@sandbox.waku.nodes.statu\
         s.im",
    ],
    peers: &[],
};

/// Content topics are spread over the one shard 0, as the reference does since it serves Status;
/// applications name shards 32 (all users) and 64 (communities).
static STATUS: Preset = Preset {
    cluster: 16,
    shards_in_cluster: NonZeroU16::MIN,
    shards: &[0, 32, 64],
    message_bytes: Some(1024 * KIB),
    discv5: Some(true),
    discv5_bootstrap: &[],
    dns_discovery_urls: &[
        "enrtree://AMOJVZX4V6EXP7NTJPMAYJYST2QP6AJXYW76IU6VGJS7UVSNDYZG4@boot.prod.status.nodes.s\
         tatus.im",
    ],
    peers: &[
        "/dns4/boot-01.do-ams3.status.prod.status.im/tcp/30303/p2p/16Uiu2HAmAR24Mbb6VuzoyUiGx42Ue\
         nDkshENVDj4qnmmbabLvo31",
        "/dns4/boot-01.gc-us-central1-a.status.prod.status.im/tcp/30303/p2p/16Uiu2HAm8mUZ18tBWPXD\
         QsaF7PbCKYA35z7WB2xNZH2EVq1qS8LJ",
        "/dns4/boot-01.ac-cn-hongkong-c.status.prod.status.im/tcp/30303/p2p/16Uiu2HAmGwcE8v7gmJNE\
         WFtZtojYpPMTHy2jBLL6xRk33qgDxFWX",
    ],
};

#[cfg(test)]
mod tests {
    use libp2p::Multiaddr;
    use protocol::{node_list::ListLink, record::NodeRecord};

    use super::*;
    use crate::rln::contract::parse_address;

    #[test]
    fn every_address_record_and_list_of_a_preset_can_be_read() {
        for network in Network::value_variants() {
            let preset = network.preset();
            for record in preset.discv5_bootstrap {
                record.parse::<NodeRecord>().unwrap();
            }
            for list in preset.dns_discovery_urls {
                list.parse::<ListLink>().unwrap();
            }
            for peer in preset.peers {
                peer.parse::<Multiaddr>().unwrap();
            }
            assert!(preset.shards.iter().all(|shard| *shard < router::SHARDS));
            assert!(!preset.dns_discovery_urls.is_empty());
        }
    }

    #[test]
    fn names_of_the_reference_are_taken_too() {
        for (name, network) in [
            ("waku", Network::Waku),
            ("twn", Network::Waku),
            ("status", Network::Status),
            ("status.prod", Network::Status),
        ] {
            assert_eq!(Network::from_str(name, false), Ok(network));
        }
        let stated = parse_address("0xB9cd878C90E49F797B4431fBF4fb333108CB90e6");
        assert_eq!(stated, Some(WAKU_CONTRACT.address));
    }
}
