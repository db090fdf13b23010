//! A node's own steps in the ceremony: makes its keys and its record, finds itself in a plan, takes
//! its share from a genesis.
//!
//! Every step may be repeated, and may be interrupted at any point and then repeated. A node
//! belongs to a subnet once `subnet.json` exists, which is written last.

use std::{fs, path::Path};

use accounting::{MIB, Pool};
use anyhow::{Context, Result, bail, ensure};
use ed25519_dalek::SigningKey;
use genesis::{GENESIS_EPOCH, NodeRecord, Plan, RECORD_BYTES_MAX, Summary, VerifiedGenesis};
use ic_principal::Principal;
use nidkg::{Engine, EngineConfig, NodeIndex, SecretShare, generate_key_pair};
use rand::rngs::OsRng;

use super::{
    ENCRYPTION_KEY, Member, NODE_KEY, Origin, RECORD, SHARE_KEY, SUBNET,
    files::{self, Readers},
    move_key_past, read_encryption_key, read_node_key, read_share, shares,
    subnet::Subnet,
    summary, write_node_key, write_share,
};

/// Greatest memory for tables in a command: those of 40 receivers. With less memory the work is
/// slower.
const TABLE_BYTES_MAX: u64 = 4 * MIB;

/// Engine for the heavy work of key generation in a command: on half of the cores, at low priority.
pub(crate) fn engine() -> Result<Engine> {
    let tables = Pool::standalone(limits::pool::NIDKG_TABLES, TABLE_BYTES_MAX);
    Ok(Engine::new(EngineConfig { tables, ..EngineConfig::for_this_machine() })?)
}

/// The keys of a node of the ceremony, and its record with this address. Makes what is not there;
/// what is there stays.
pub(crate) fn keygen(data: &Path, address: &str) -> Result<NodeRecord> {
    // Before anything is made.
    genesis::check_address(address)?;
    fs::create_dir_all(data)
        .with_context(|| format!("making the data folder {}", data.display()))?;
    let folder = data.join("keys");
    if let Some(record) = kept_record(&folder)?
        && record.address() == address
    {
        return Ok(record);
    }
    let _lock = files::lock(data)?;
    if !folder.exists() {
        refuse_state_without_keys(data)?;
        let node = SigningKey::generate(&mut OsRng);
        files::create_folder(&folder, |folder| {
            write_node_key(folder, &node)?;
            make_encryption_key(folder, &node, address)
        })?;
    } else if let Some(record) = kept_record(&folder)? {
        // The same keys at another address.
        let record = NodeRecord::new(&node_key(data)?, *record.encryption_key(), address)?;
        files::write(&folder.join(RECORD), record.to_json().as_bytes(), Readers::All)?;
    } else {
        // A member that lost its encryption key makes another here, for a record that the members
        // exchange.
        if let Some(subnet) =
            Subnet::read(&folder.join(SUBNET))?.filter(|subnet| subnet.origin.is_none())
        {
            bail!(
                "the data folder {} belongs to the subnet {}: a node of another subnet needs a \
                 data folder of its own",
                data.display(),
                subnet.id()
            );
        }
        let node = node_key(data)?;
        ensure!(
            !folder.join(ENCRYPTION_KEY).exists(),
            "{} is missing, the public part of {ENCRYPTION_KEY}: restore it, or, if no plan has \
             this node yet, remove {ENCRYPTION_KEY} to make both again",
            folder.join(RECORD).display()
        );
        make_encryption_key(&folder, &node, address)?;
    }
    kept_record(&folder)?.context("the record was written and is not there")
}

/// The node named by the record in this folder; none where there is no record.
pub(super) fn recorded_node(folder: &Path) -> Result<Option<Principal>> {
    Ok(read_record(folder)?.map(|record| record.node_id()))
}

fn read_record(folder: &Path) -> Result<Option<NodeRecord>> {
    let path = folder.join(RECORD);
    if !path.exists() {
        return Ok(None);
    }
    files::read_as(&path, RECORD_BYTES_MAX, NodeRecord::from_json).map(Some)
}

/// The record that was made before, checked against the keys in the same folder.
fn kept_record(folder: &Path) -> Result<Option<NodeRecord>> {
    let path = folder.join(RECORD);
    let Some(record) = read_record(folder)? else { return Ok(None) };
    let node = read_node_key(folder)?
        .with_context(|| format!("{NODE_KEY} is missing, {RECORD} is present"))?;
    ensure!(
        *record.node_key() == node.verifying_key(),
        "{} is not the record of the {NODE_KEY} in its folder: files of two nodes were mixed",
        path.display()
    );
    let key = read_encryption_key(folder)?.with_context(|| lost_encryption_key(folder))?;
    key.check(record.encryption_key())
        .with_context(|| format!("{ENCRYPTION_KEY} does not belong to {}", path.display()))?;
    Ok(Some(record))
}

fn lost_encryption_key(folder: &Path) -> String {
    format!(
        "{} is missing, the secret part of what the node's record says: restore it. If no plan \
         has this node yet, remove {RECORD} beside it, make keys again with `thimble keygen` and \
         hand out the new record; once a plan has this node, its share cannot be opened without \
         this key. A node that has joined may make keys again as well, and gets its next share \
         when the members have exchanged its record (`thimble members change`)",
        folder.join(ENCRYPTION_KEY).display()
    )
}

/// Secret and record in one go: first the secret, because the record is what others will rely on.
fn make_encryption_key(folder: &Path, node: &SigningKey, address: &str) -> Result<()> {
    let owner = genesis::node_id(&node.verifying_key());
    let (public, secret) = generate_key_pair(owner.as_slice(), &mut OsRng);
    let record = NodeRecord::new(node, public, address)?;
    files::write(&folder.join(ENCRYPTION_KEY), &secret.to_bytes(), Readers::Owner)?;
    files::write(&folder.join(RECORD), record.to_json().as_bytes(), Readers::All)
}

/// State of a subnet whose keys are gone would be taken for that of the new one.
fn refuse_state_without_keys(data: &Path) -> Result<()> {
    for name in ["state", "blocks", "pages"] {
        let path = data.join(name);
        ensure!(
            !path.exists(),
            "{} is there without keys: it is the state of another subnet, take an empty data \
             folder",
            path.display()
        );
    }
    Ok(())
}

pub(crate) fn node_key(data: &Path) -> Result<SigningKey> {
    let folder = data.join("keys");
    read_node_key(&folder)?.with_context(|| {
        format!(
            "{} is missing: make this node's keys with `thimble keygen`",
            folder.join(NODE_KEY).display()
        )
    })
}

/// The node key of this data folder, whose record must be in the plan as it was made here: else the
/// node would deal for others and never get its share.
pub(crate) fn node_of_plan(data: &Path, plan: &Plan) -> Result<SigningKey> {
    let node = node_key(data)?;
    let own = &plan.nodes()[plan.index_of(&node.verifying_key())?.0 as usize];
    let folder = data.join("keys");
    let record = kept_record(&folder)?.with_context(|| {
        format!("{} is missing: run `thimble keygen`", folder.join(RECORD).display())
    })?;
    ensure!(
        own.encryption_key() == record.encryption_key(),
        "the plan has another encryption key for this node than {}: it was made of an older \
         record, or of somebody else's",
        folder.join(RECORD).display()
    );
    ensure!(
        own.address() == record.address(),
        "the plan has the address {} for this node, {} has {}: make the plan of the newest record",
        own.address(),
        folder.join(RECORD).display(),
        record.address()
    );
    Ok(node)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JoinOutcome {
    /// This node's place among the first members; none if it has to be admitted.
    pub(crate) place: Option<NodeIndex>,
    /// Whether the data folder belonged to this subnet already.
    pub(crate) before: bool,
}

/// Makes the data folder one of the subnet of this genesis. A node of its plan takes its share out
/// of it; another one gets to know the subnet, and takes part once the members admit it.
pub(crate) fn join(data: &Path, genesis: &VerifiedGenesis, engine: &Engine) -> Result<JoinOutcome> {
    let folder = data.join("keys");
    let origin = Origin { hash: *genesis.hash(), time_seconds: genesis.plan().time_seconds() };
    // A node that only got to know another subnet has nothing to lose yet.
    let is_free = |subnet: &Subnet| {
        subnet.node_index.is_none()
            && subnet.origin.as_ref() != Some(&origin)
            && !shares::moved_on(&folder)
            && refuse_state_without_keys(data).is_ok()
    };
    if let Some(subnet) = Subnet::read(&folder.join(SUBNET))?.filter(|subnet| !is_free(subnet)) {
        ensure!(
            subnet.origin.as_ref() == Some(&origin),
            "the data folder {} belongs to the subnet {}, this genesis is that of {}: a node of \
             another subnet needs a data folder of its own",
            data.display(),
            subnet.id(),
            genesis.subnet_id()
        );
        if let Some(place) = subnet.node_index {
            let has_it = match read_share(&folder, place)? {
                Some(share) => is_share(genesis, place, &share),
                // Removed, because the key was reshared.
                None => shares::moved_on(&folder),
            };
            ensure!(
                has_it,
                "{} is missing or another's: it was made when this node joined and cannot be \
                 opened twice, restore it",
                folder.join(SHARE_KEY).display()
            );
        }
        summary::write_genesis(&folder, &Summary::genesis(genesis))?;
        return Ok(JoinOutcome { place: subnet.node_index, before: true });
    }
    let node = node_key(data)?;
    let place = genesis.plan().index_of(&node.verifying_key()).ok();
    let _lock = files::lock(data)?;
    match place {
        Some(place) => take_share(data, genesis, engine, place)?,
        None => {
            refuse_state_without_keys(data)?;
            // The record that the members will need.
            kept_record(&folder)?.with_context(|| {
                format!("{} is missing: run `thimble keygen`", folder.join(RECORD).display())
            })?;
        }
    }
    summary::write_genesis(&folder, &Summary::genesis(genesis))?;
    subnet(genesis, place, origin)?.write(&folder.join(SUBNET))?;
    Ok(JoinOutcome { place, before: false })
}

/// Opens and writes the share of a node of the plan.
fn take_share(
    data: &Path,
    genesis: &VerifiedGenesis,
    engine: &Engine,
    index: NodeIndex,
) -> Result<()> {
    let folder = data.join("keys");
    let key = read_encryption_key(&folder)?.with_context(|| lost_encryption_key(&folder))?;
    key.check(genesis.plan().nodes()[index.0 as usize].encryption_key()).with_context(|| {
        format!(
            "{} is not the key that the genesis has for this node",
            folder.join(ENCRYPTION_KEY).display()
        )
    })?;
    // An existing share fits, or is left over from an abandoned ceremony.
    match read_share(&folder, index)?.filter(|share| is_share(genesis, index, share)) {
        Some(_) => {}
        // Lost after the key was reshared: the first share is not needed any more.
        None if shares::moved_on(&folder) => {}
        None => {
            refuse_state_without_keys(data)?;
            let share =
                genesis.open_share(engine, index, &key).context("opening this node's share")?;
            write_share(&folder, &share)?;
        }
    }
    move_key_past(&folder, key, GENESIS_EPOCH).map(drop)
}

fn is_share(genesis: &VerifiedGenesis, index: NodeIndex, share: &SecretShare) -> bool {
    genesis.committee().shares.get(index.0 as usize) == Some(&share.public_key())
}

fn subnet(
    genesis: &VerifiedGenesis,
    node_index: Option<NodeIndex>,
    origin: Origin,
) -> Result<Subnet> {
    let member = |(index, node): (usize, &NodeRecord)| Member {
        index: index as u32,
        node_id: node.node_id(),
        node_key: node.node_key().to_bytes(),
        address: node.address().to_owned(),
    };
    Ok(Subnet {
        committee: genesis.committee().clone(),
        node_index,
        // Members are named.
        node_id: None,
        members: genesis.plan().nodes().iter().enumerate().map(member).collect(),
        coefficients: genesis.committee().coefficients()?,
        origin: Some(origin),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(super) mod tests {
    use std::path::PathBuf;

    use genesis::{Genesis, SignedDealing};
    use nidkg::Epoch;

    use super::*;
    use crate::keys::{Keys, read_summary, write_summary};

    /// Two nodes with keys and the genesis they made.
    pub(in crate::keys) struct Stage {
        pub(in crate::keys) _folder: tempfile::TempDir,
        pub(in crate::keys) data: [PathBuf; 2],
        pub(in crate::keys) genesis: VerifiedGenesis,
        pub(in crate::keys) engine: Engine,
    }

    pub(in crate::keys) fn stage() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let data = ["a", "b"].map(|name| folder.path().join(name));
        let records = data.iter().enumerate();
        let records = records
            .map(|(index, data)| keygen(data, &format!("h:{}", index + 1)).unwrap())
            .collect();
        let engine = engine().unwrap();
        let plan = Plan::new(records, 9).unwrap();
        let deal = |data: &PathBuf| {
            let node = node_of_plan(data, &plan).unwrap();
            SignedDealing::create(&engine, &plan, &node, &mut OsRng).unwrap()
        };
        let dealings = data.iter().map(deal).collect();
        let (_, genesis) = Genesis::assemble(&engine, plan, dealings, &mut OsRng).unwrap();
        Stage { _folder: folder, data, genesis, engine }
    }

    #[test]
    fn keys_are_made_once_and_the_address_may_change() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        assert!(keygen(&data, "nonsense").is_err());
        assert!(!data.exists(), "nothing was made");
        let first = keygen(&data, "h:1").unwrap();
        assert_eq!(keygen(&data, "h:1").unwrap().to_json(), first.to_json());
        let moved = keygen(&data, "h:2").unwrap();
        assert_eq!((moved.node_id(), moved.address()), (first.node_id(), "h:2"));
        assert_eq!(moved.encryption_key(), first.encryption_key());
        let error = Keys::open_or_create(&data.join("keys")).err().unwrap();
        assert!(format!("{error:#}").contains("belongs to no subnet yet"), "{error:#}");
    }

    #[test]
    fn joining_gives_what_a_node_of_several_needs() {
        let Stage { data, genesis, engine, .. } = &stage();
        for data in data {
            let joined = join(data, genesis, engine).unwrap();
            let index = joined.place.unwrap();
            let keys = Keys::open_or_create(&data.join("keys")).unwrap();
            assert_eq!(keys.subnet_id(), genesis.subnet_id());
            assert_eq!(keys.share.as_ref().unwrap().index, index);
            let first = Summary::genesis(genesis).to_bytes();
            assert_eq!(keys.genesis_summary().unwrap().to_bytes(), first);
            assert_eq!(read_summary(&data.join("keys")).unwrap().to_bytes(), first);
            assert_eq!(keys.members.len(), 2);
            assert_eq!(keys.members[index.0 as usize].node_id, keys.node_id());
            assert_eq!(keys.origin, Some(Origin { hash: *genesis.hash(), time_seconds: 9 }));
            let encryption = read_encryption_key(&data.join("keys")).unwrap().unwrap();
            assert_eq!(encryption.epoch(), Epoch(1), "nothing of the ceremony can be opened again");
            assert!(!joined.before);
            assert_eq!(
                join(data, genesis, engine).unwrap(),
                JoinOutcome { before: true, ..joined }
            );
        }
    }

    #[test]
    fn a_member_that_lost_its_encryption_key_makes_another() {
        let Stage { data: [data, _], genesis, engine, .. } = &stage();
        let before = keygen(data, "h:1").unwrap();
        join(data, genesis, engine).unwrap();
        let folder = data.join("keys");
        fs::remove_file(folder.join(ENCRYPTION_KEY)).unwrap();
        let error = keygen(data, "h:1").err().unwrap().to_string();
        assert!(error.contains("thimble members change"), "{error}");
        fs::remove_file(folder.join(RECORD)).unwrap();
        let after = keygen(data, "h:1").unwrap();
        assert_eq!(after.node_id(), before.node_id());
        assert_ne!(after.encryption_key(), before.encryption_key());
        Keys::open_or_create(&folder).unwrap();
    }

    #[test]
    fn joining_that_was_cut_off_is_finished() {
        let Stage { data: [data, _], genesis, engine, .. } = &stage();
        let keys = data.join("keys");
        let before = fs::read(keys.join(ENCRYPTION_KEY)).unwrap();
        let joined = join(data, genesis, engine).unwrap();
        // Cut off before the subnet was written: the key has moved on, the share is there.
        fs::remove_file(keys.join(SUBNET)).unwrap();
        assert_eq!(join(data, genesis, engine).unwrap(), joined);
        // Lost after the node ran: what is there is this subnet's.
        fs::create_dir(data.join("state")).unwrap();
        fs::remove_file(keys.join(SUBNET)).unwrap();
        assert_eq!(join(data, genesis, engine).unwrap(), joined);
        fs::remove_dir(data.join("state")).unwrap();
        // Before the key moved on.
        fs::remove_file(keys.join(SUBNET)).unwrap();
        fs::write(keys.join(ENCRYPTION_KEY), &before).unwrap();
        assert_eq!(join(data, genesis, engine).unwrap(), joined);
        assert_eq!(read_encryption_key(&keys).unwrap().unwrap().epoch(), Epoch(1));
        // Before the share was written.
        for name in [SUBNET, SHARE_KEY] {
            fs::remove_file(keys.join(name)).unwrap();
        }
        fs::write(keys.join(ENCRYPTION_KEY), &before).unwrap();
        assert_eq!(join(data, genesis, engine).unwrap(), joined);
        Keys::open_or_create(&keys).unwrap();
    }

    #[test]
    fn lost_or_foreign_key_file_is_reported_by_name() {
        let Stage { data: [data, other], genesis, engine, .. } = &stage();
        let keys = data.join("keys");
        let refused = |words: &str| {
            let error = format!("{:#}", join(data, genesis, engine).err().unwrap());
            assert!(error.contains(words), "{words}: {error}");
        };
        let saved = fs::read(keys.join(ENCRYPTION_KEY)).unwrap();
        fs::remove_file(keys.join(ENCRYPTION_KEY)).unwrap();
        refused("encryption.key is missing");
        let error = keygen(data, "h:1").err().unwrap().to_string();
        assert!(error.contains("encryption.key is missing"), "{error}");
        let error = node_of_plan(data, genesis.plan()).err().unwrap().to_string();
        assert!(error.contains("encryption.key is missing"), "{error}");
        fs::copy(other.join("keys").join(ENCRYPTION_KEY), keys.join(ENCRYPTION_KEY)).unwrap();
        refused("is not the key that the genesis has for this node");
        fs::write(keys.join(ENCRYPTION_KEY), &saved[1..]).unwrap();
        refused("encryption.key");
        fs::write(keys.join(ENCRYPTION_KEY), &saved).unwrap();
        fs::create_dir(data.join("state")).unwrap();
        refused("is the state of another subnet");
        fs::remove_dir(data.join("state")).unwrap();

        join(data, genesis, engine).unwrap();
        fs::remove_file(keys.join(SHARE_KEY)).unwrap();
        refused("subnet-share.key is missing or another's");
        fs::remove_file(keys.join(SUBNET)).unwrap();
        refused("moved on to epoch 1");
        fs::remove_file(keys.join(NODE_KEY)).unwrap();
        refused("node.key is missing");
    }

    #[test]
    fn another_subnet_is_refused() {
        let (first, second) = (stage(), stage());
        let data = &first.data[0];
        // By mistake: nothing is lost by it, and the right one follows.
        assert_eq!(join(data, &second.genesis, &second.engine).unwrap().place, None);
        let joined = join(data, &first.genesis, &first.engine).unwrap();
        assert!(joined.place.is_some() && !joined.before);
        assert_eq!(
            read_summary(&data.join("keys")).unwrap().subnet_id(),
            first.genesis.subnet_id()
        );
        let error = join(data, &second.genesis, &second.engine).err().unwrap().to_string();
        let names = [first.genesis.subnet_id(), second.genesis.subnet_id()].map(|id| id.to_text());
        assert!(names.iter().all(|name| error.contains(name)), "{error}");

        // A subnet of one takes no part.
        let folder = tempfile::tempdir().unwrap();
        Keys::open_or_create(&folder.path().join("keys")).unwrap();
        assert!(
            keygen(folder.path(), "h:1")
                .err()
                .unwrap()
                .to_string()
                .contains("belongs to the subnet")
        );
        let error = join(folder.path(), &first.genesis, &first.engine).err().unwrap().to_string();
        assert!(error.contains("belongs to the subnet"), "{error}");
        // And state without keys is not fetched.
        fs::remove_dir_all(folder.path().join("keys")).unwrap();
        fs::create_dir(folder.path().join("blocks")).unwrap();
        assert!(
            keygen(folder.path(), "h:1")
                .err()
                .unwrap()
                .to_string()
                .contains("state of another subnet")
        );
    }

    #[test]
    fn a_node_that_is_not_in_the_plan_gets_to_know_the_subnet() {
        let Stage { _folder: folder, data: [member, _], genesis, engine } = &stage();
        let data = folder.path().join("c");
        let error = join(&data, genesis, engine).err().unwrap().to_string();
        assert!(error.contains("make this node's keys with `thimble keygen`"), "{error}");
        let record = keygen(&data, "h:3").unwrap();
        let joined = join(&data, genesis, engine).unwrap();
        assert_eq!(joined, JoinOutcome { place: None, before: false });
        assert_eq!(join(&data, genesis, engine).unwrap(), JoinOutcome { before: true, ..joined });
        let folder = data.join("keys");
        let keys = Keys::open_or_create(&folder).unwrap();
        assert!(keys.share.is_none());
        assert_eq!((keys.subnet_id(), keys.members.len()), (genesis.subnet_id(), 2));
        assert_eq!(keys.node_id(), record.node_id());
        assert_eq!(
            read_encryption_key(&folder).unwrap().unwrap().epoch(),
            GENESIS_EPOCH,
            "it waits"
        );

        // A summary that was lost is asked for, and comes back; a newer one stays.
        for name in ["summary", "genesis-summary"] {
            fs::remove_file(folder.join(name)).unwrap();
        }
        let error = format!("{:#}", read_summary(&folder).err().unwrap());
        assert!(error.contains("run `thimble join` with the genesis again"), "{error}");
        assert!(keys.genesis_summary().is_err());
        join(&data, genesis, engine).unwrap();
        let mut newer = read_summary(&folder).unwrap();
        newer.close_epoch();
        write_summary(&folder, &newer).unwrap();
        join(&data, genesis, engine).unwrap();
        assert_eq!(
            (read_summary(&folder).unwrap().epoch(), keys.genesis_summary().unwrap().epoch()),
            (1, 0)
        );
        fs::write(folder.join("summary"), "no summary").unwrap();
        assert!(format!("{:#}", read_summary(&folder).err().unwrap()).contains("the version is"));

        // Files of a member with the key of this node.
        join(member, genesis, engine).unwrap();
        fs::copy(member.join("keys").join(SUBNET), folder.join(SUBNET)).unwrap();
        let error = format!("{:#}", Keys::open_or_create(&folder).err().unwrap());
        assert!(error.contains("subnet-share.key is missing"), "{error}");
        let own = member.join("keys").join(SUBNET);
        let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&own).unwrap()).unwrap();
        file.as_object_mut().unwrap().remove("node_index").unwrap();
        fs::write(&own, file.to_string()).unwrap();
        let error = format!("{:#}", Keys::open_or_create(&member.join("keys")).err().unwrap());
        assert!(error.contains("has it among the first members"), "{error}");
    }

    #[test]
    fn a_plan_of_another_record_is_not_dealt_for() {
        let Stage { data: [data, _], genesis, .. } = &stage();
        keygen(data, "h:9").unwrap();
        let error = node_of_plan(data, genesis.plan()).err().unwrap().to_string();
        assert!(error.contains("h:1") && error.contains("h:9"), "{error}");
        for name in [RECORD, ENCRYPTION_KEY] {
            fs::remove_file(data.join("keys").join(name)).unwrap();
        }
        keygen(data, "h:1").unwrap();
        let error = node_of_plan(data, genesis.plan()).err().unwrap().to_string();
        assert!(error.contains("another encryption key"), "{error}");
    }
}
