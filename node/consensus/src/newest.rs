//! Maps that keep their newest entries.

use std::collections::BTreeMap;

/// Adds an entry, and drops those with the lowest keys beyond `kept` entries.
pub(crate) fn insert_newest<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: V, kept: usize) {
    map.insert(key, value);
    while map.len() > kept {
        map.pop_first();
    }
}
