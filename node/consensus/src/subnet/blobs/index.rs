//! The index: which blobs there are, and where in the log their bytes are.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use disk::DiskFile;

/// Of a name, and of the heads of records, in the sum of what blobs have.
const OVERHEAD_BYTES: u64 = 128;

/// Names a blob for as long as the process lives; in the log it may get another number.
pub(super) type Key = u64;

/// Bytes of a blob, in the record of a write.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    /// The segment. Stays readable when its name is removed.
    pub(super) file: Arc<dyn DiskFile>,
    /// In the segment.
    pub(super) at: u64,
    pub(super) bytes: u64,
}

impl Extent {
    /// The rest, without the first bytes.
    fn without(&self, first: u64) -> Self {
        Self { file: self.file.clone(), at: self.at + first, bytes: self.bytes - first }
    }
}

#[derive(Debug)]
pub(super) struct Blob {
    /// In the log.
    pub(super) id: u64,
    /// Partition and name; none once it was removed.
    pub(super) name: Option<(String, Vec<u8>)>,
    pub(super) version: u16,
    pub(super) length: u64,
    /// By offset in the blob; they do not overlap, and bytes between them are zeros.
    pub(super) extents: BTreeMap<u64, Extent>,
    /// Bytes of all extents.
    stored: u64,
    /// Number of the segment in which its first record is.
    pub(super) since: u64,
    /// Number of the last change of the log that is one of this blob.
    pub(super) changed: u64,
    pub(super) open: bool,
}

impl Blob {
    pub(super) fn new(id: u64, since: u64) -> Self {
        Self {
            id,
            name: None,
            version: 0,
            length: 0,
            extents: BTreeMap::new(),
            stored: 0,
            since,
            changed: 0,
            open: false,
        }
    }

    pub(super) fn put(&mut self, offset: u64, extent: Extent) {
        if extent.bytes == 0 {
            return;
        }
        let end = offset + extent.bytes;
        self.cut(offset, end);
        self.length = self.length.max(end);
        self.stored += extent.bytes;
        self.extents.insert(offset, extent);
    }

    pub(super) fn resize(&mut self, length: u64) {
        if length < self.length {
            self.cut(length, self.length);
        }
        self.length = length;
    }

    /// Makes a range zero.
    fn cut(&mut self, from: u64, to: u64) {
        let before = self.extents.range_mut(..from).next_back();
        if let Some((start, before)) = before {
            let end = start + before.bytes;
            if end > from {
                self.stored -= end.min(to) - from;
                let behind = (end > to).then(|| before.without(to - start));
                before.bytes = from - start;
                self.extents.extend(behind.map(|behind| (to, behind)));
            }
        }
        let within: Vec<u64> = self.extents.range(from..to).map(|(start, _)| *start).collect();
        for start in within {
            if let Some(extent) = self.extents.remove(&start) {
                let end = start + extent.bytes;
                self.stored -= end.min(to) - start;
                if end > to {
                    self.extents.insert(to, extent.without(to - start));
                }
            }
        }
    }

    /// The bytes that it adds to [`Index::live_bytes`] while it has a name.
    fn live_bytes(&self) -> u64 {
        self.stored + OVERHEAD_BYTES
    }
}

#[derive(Debug, Default)]
pub(super) struct Index {
    partitions: BTreeMap<String, BTreeMap<Vec<u8>, Key>>,
    pub(super) blobs: BTreeMap<Key, Blob>,
    /// Blobs that have a name, by the segment of their first record.
    ages: BTreeSet<(u64, Key)>,
    /// Sum over the blobs that have a name.
    live_bytes: u64,
}

impl Index {
    pub(super) fn find(&self, partition: &str, name: &[u8]) -> Option<Key> {
        self.partitions.get(partition)?.get(name).copied()
    }

    pub(super) fn partition(&self, partition: &str) -> Option<&BTreeMap<Vec<u8>, Key>> {
        self.partitions.get(partition)
    }

    /// Names a blob; one that had the name before is removed.
    pub(super) fn name(&mut self, key: Key, version: u16, partition: &str, name: &[u8]) {
        let names = self.partitions.entry(partition.to_owned()).or_default();
        if let Some(before) = names.insert(name.to_vec(), key)
            && before != key
        {
            self.retire(before);
        }
        if let Some(blob) = self.blobs.get_mut(&key) {
            blob.version = version;
            if blob.name.is_none() {
                self.live_bytes += blob.live_bytes();
            }
            blob.name = Some((partition.to_owned(), name.to_vec()));
            self.ages.insert((blob.since, key));
        }
    }

    /// Changes what a blob contains.
    pub(super) fn change(&mut self, key: Key, change: impl FnOnce(&mut Blob)) {
        if let Some(blob) = self.blobs.get_mut(&key) {
            let before = blob.stored;
            change(blob);
            if blob.name.is_some() {
                self.live_bytes = self.live_bytes - before + blob.stored;
            }
        }
    }

    /// The blob loses its name. The partition stays, though it may be empty.
    pub(super) fn remove(&mut self, key: Key) {
        let Some((partition, name)) = self.blobs.get(&key).and_then(|blob| blob.name.clone())
        else {
            return;
        };
        if let Some(names) = self.partitions.get_mut(&partition) {
            names.remove(&name);
        }
        self.retire(key);
    }

    pub(super) fn remove_partition(&mut self, partition: &str) {
        for key in self.partitions.remove(partition).unwrap_or_default().into_values() {
            self.retire(key);
        }
    }

    /// A blob without a name is there for as long as it is open.
    fn retire(&mut self, key: Key) {
        if let Entry::Occupied(mut blob) = self.blobs.entry(key) {
            self.ages.remove(&(blob.get().since, key));
            if blob.get_mut().name.take().is_some() {
                self.live_bytes -= blob.get().live_bytes();
            }
            if !blob.get().open {
                blob.remove();
            }
        }
    }

    pub(super) fn close(&mut self, key: Key) {
        if let Entry::Occupied(mut blob) = self.blobs.entry(key) {
            blob.get_mut().open = false;
            if blob.get().name.is_none() {
                blob.remove();
            }
        }
    }

    /// Blobs that were written and never named: their names were removed with a segment.
    pub(super) fn drop_unnamed(&mut self) {
        self.blobs.retain(|_, blob| blob.name.is_some());
    }

    /// A blob whose first record is in this segment, or in an earlier one.
    pub(super) fn beginning_in(&self, segment: u64) -> Option<Key> {
        self.ages.first().filter(|(since, _)| *since <= segment).map(|(_, key)| *key)
    }

    /// The same bytes are at other places of the log, from segment `since` on, under another
    /// number.
    pub(super) fn moved(&mut self, key: Key, id: u64, since: u64, extents: BTreeMap<u64, Extent>) {
        if let Some(blob) = self.blobs.get_mut(&key) {
            self.ages.remove(&(blob.since, key));
            (blob.id, blob.since, blob.extents) = (id, since, extents);
            if blob.name.is_some() {
                self.ages.insert((since, key));
            }
        }
    }

    /// Bytes of everything that has a name, with its records.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The same, by looking at every extent.
    pub(super) fn count_live_bytes(&self) -> u64 {
        let named = self.blobs.values().filter(|blob| blob.name.is_some());
        let extents = |blob: &Blob| blob.extents.values().map(|it| it.bytes).sum::<u64>();
        named.map(|blob| extents(blob) + OVERHEAD_BYTES).sum()
    }

    /// Every extent is within its blob and in front of the next, names and blobs agree, and the sum
    /// is right.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let named: BTreeSet<Key> =
            self.partitions.values().flat_map(|names| names.values().copied()).collect();
        for (key, blob) in &self.blobs {
            let mut free = 0;
            for (offset, extent) in &blob.extents {
                assert!(*offset >= free && extent.bytes > 0, "extents of blob {key} overlap");
                free = offset + extent.bytes;
            }
            assert!(free <= blob.length, "blob {key} has {free} of {} bytes", blob.length);
            assert_eq!(named.contains(key), blob.name.is_some(), "blob {key}");
            assert_eq!(self.ages.contains(&(blob.since, *key)), blob.name.is_some(), "blob {key}");
            assert!(blob.open || blob.name.is_some(), "blob {key} is of no use");
        }
        assert_eq!(self.ages.len(), named.len());
        assert_eq!(self.live_bytes, self.count_live_bytes(), "bytes of {} blobs", named.len());
    }
}
