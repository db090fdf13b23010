//! Node records and lists of them, as other implementations write them and as strangers damage
//! them.

use std::net::Ipv4Addr;

use bytes::Bytes;
use proptest::prelude::*;
use protocol::{
    enr_keys::{Capabilities, ShardList},
    node_list::{EntryHash, ListEntry, ListError, ListLink, ListRoot},
    peer_exchange::RECORD_BYTES_MAX,
    record::{NodeRecord, NodeRecordError, RecordContent},
};

/// The example of EIP-778.
const EXAMPLE: &str = "enr:-IS4QHCYrYZbAKWCBRlAy5zzaDZXJBGkcnh4MHcBFZntXNFrdvJjX04jRzjzCBOonrk\
                       Tfj499SZuOh8R33Ls8RRcy5wBgmlkgnY0gmlwhH8AAAGJc2VjcDI1NmsxoQPKY0yuDUmstAHYp\
                       Ma2_oxVtw0RW_QAdpzBQA8yWM0xOIN1ZHCCdl8";

fn content(sequence: u64) -> RecordContent {
    RecordContent {
        sequence,
        capabilities: Capabilities::RELAY.with(Capabilities::STORE),
        shards: ShardList::new(16, [1, 32]).unwrap(),
        ip4: Some((Ipv4Addr::new(203, 0, 113, 5), Some(60_000))),
        udp: (Some(9000), None),
        ..RecordContent::default()
    }
}

#[test]
fn the_example_of_the_specification_is_read() {
    let record: NodeRecord = EXAMPLE.parse().unwrap();
    assert_eq!((record.sequence, record.to_string().as_str()), (1, EXAMPLE));
    assert_eq!(
        hex::encode(record.public_key),
        "03ca634cae0d49acb401d8a4c6b6fe8c55b70d115bf400769cc1400f3258cd3138"
    );
    assert_eq!(record.udp, Some("127.0.0.1:30303".parse().unwrap()));
    assert_eq!((record.capabilities, record.shards), (None, None));
}

#[test]
fn what_was_signed_is_read() {
    let record = content(7).sign(&[3; 32]).unwrap();
    assert_eq!(record.sequence, 7);
    assert_eq!(record.shards, Some(ShardList::new(16, [1, 32]).unwrap()));
    assert_eq!(record.capabilities, Some(Capabilities(3)));
    assert_eq!(record.tcp, ["203.0.113.5:60000".parse().unwrap()]);
    assert_eq!(record.to_string().parse::<NodeRecord>().unwrap(), record);
}

#[test]
fn addresses_that_do_not_fit_are_left_out_from_the_end() {
    let addresses: Vec<Vec<u8>> = (0..6).map(|number| vec![number; 50]).collect();
    let record =
        RecordContent { addresses: addresses.clone(), ..content(1) }.sign(&[3; 32]).unwrap();
    let kept = record.addresses.len();
    assert!((1..6).contains(&kept) && record.bytes.len() <= RECORD_BYTES_MAX);
    assert!(record.addresses.iter().eq(&addresses[..kept]));
}

#[test]
fn a_changed_byte_is_noticed() {
    let record = content(1).sign(&[3; 32]).unwrap();
    for place in 0..record.bytes.len() {
        let mut bytes = record.bytes.to_vec();
        bytes[place] ^= 1;
        assert!(NodeRecord::decode(&bytes).is_err(), "byte {place}");
    }
    let long = [&record.bytes[..], &[0]].concat();
    assert!(matches!(NodeRecord::decode(&long), Err(NodeRecordError::Damaged { .. })));
    assert_eq!(NodeRecord::decode(&[0; 301]), Err(NodeRecordError::TooLong { bytes: 301 }));
}

#[test]
fn the_list_of_the_specification_is_read() {
    // The example of EIP-1459; its records are of another network.
    let url =
        "enrtree://AM5FCQLWIZX2QFPNJAP7VUERCCRNGRHWZG3YYHIUV7BVDQ5FDPRT2@morenodes.example.org";
    let link: ListLink = url.parse().unwrap();
    assert_eq!((link.domain.as_str(), link.to_string().as_str()), ("morenodes.example.org", url));
    let branch = "enrtree-branch:2XS2367YHAXJFGLZHVAWLQD4ZY,H4FHT4B454P6UXFD7JCYQ5PWDY,\
                  MHTDO6TMUBRIA2XWG5LUDACK24";
    let name: EntryHash = "JWXYDBPXYWG6FX3GMDIBFA6CJ4".parse().unwrap();
    let ListEntry::Branch(children) = ListEntry::decode(branch, &name).unwrap() else {
        panic!("a branch")
    };
    assert_eq!(children.len(), 3);
    let entry = ListEntry::decode(url, &"C7HRFPF3BLGF3YR4DY5KX3SMBE".parse().unwrap()).unwrap();
    assert_eq!(entry, ListEntry::Link(link));
    let root = "enrtree-root:v1 e=JWXYDBPXYWG6FX3GMDIBFA6CJ4 l=C7HRFPF3BLGF3YR4DY5KX3SMBE seq=1 \
                sig=o908WmNp7LibOfPsr4btQwatZJ5URBr2ZAuxvK4UWHlsB9sUOTJQaGAlLPVAhM__XJesCHxLISo94z5Z2a463gA";
    // go-ethereum's key of this root.
    let key: ListLink =
        "enrtree://AKPYQIUQIL7PSIACI32J7FGZW56E5FKHEFCCOFHILBIMW3M6LWXS2@nodes.example.org"
            .parse()
            .unwrap();
    assert_eq!(ListRoot::decode(root, &key.public_key).unwrap().sequence, 1);
    let other = root.replace("seq=1", "seq=2");
    assert_eq!(ListRoot::decode(&other, &key.public_key), Err(ListError::Signature));
}

// Promise: P24 - A DNS record is used only if its hash equals its name.
#[test]
fn only_what_hashes_to_its_name_is_read() {
    let record = ListEntry::Record(Box::new(content(1).sign(&[3; 32]).unwrap()));
    let text = record.to_string();
    assert_eq!(ListEntry::decode(&text, &EntryHash::for_text(&text)).unwrap(), record);
    assert_eq!(ListEntry::decode(&text, &EntryHash::for_text("another")), Err(ListError::Hash));
    let long = format!("enrtree-branch:{}", "A".repeat(2000));
    assert!(matches!(
        ListEntry::decode(&long, &EntryHash::for_text(&long)),
        Err(ListError::TooLong { .. })
    ));
}

proptest! {
    // Promise: P24 - Only signed lists of nodes are accepted.
    #[test]
    fn whatever_is_signed_is_read_and_whatever_is_not_is_refused(
        sequence in any::<u64>(), cluster in any::<u16>(), shards in proptest::collection::vec(0_u16..1024, 0..70),
        bytes in proptest::collection::vec(any::<u8>(), 0..320), text in ".{0,80}",
    ) {
        let shards = ShardList::new(cluster, shards).unwrap();
        let content = RecordContent { sequence, shards: shards.clone(), ..content(0) };
        let record = content.sign(&[5; 32]).unwrap();
        prop_assert_eq!((record.sequence, record.shards.as_ref()), (sequence, Some(&shards)));
        prop_assert!(NodeRecord::decode(&Bytes::from(bytes)).is_err());
        prop_assert!(ListRoot::decode(&text, &record.public_key).is_err());
        let root = ListRoot { records: EntryHash::for_text(&text), links: EntryHash::for_text("l"), sequence };
        let signed = root.sign(&[5; 32]).unwrap();
        prop_assert_eq!(ListRoot::decode(&signed, &record.public_key).unwrap(), root);
    }
}
