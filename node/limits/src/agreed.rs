//! The limits that nodes of one subnet must have alike, because the result of a batch depends on
//! them, or because they bound messages between nodes.

use serde_json::Value;

use crate::Limits;

/// Groups whose every limit affects the result of a batch, except those in [`OWN`].
const GROUPS: [&str; 3] = ["subnet", "execution", "module"];

/// Of those groups: only queries see them, or only the machine does.
const OWN: [&str; 9] = [
    "execution.query_threads",
    "execution.query_threads_per_canister",
    "execution.query_wall_clock_seconds",
    "execution.query_wait_seconds",
    "execution.query_cache_bytes",
    "execution.instructions_per_query",
    "execution.heap_dirty_bytes_per_query",
    "execution.stable_dirty_bytes_per_query",
    "execution.composite_query_depth",
];

/// Single limits of other groups.
const MORE: [&str; 22] = [
    "sandbox.worker_anonymous_bytes",
    "pages.delta_capacity_bytes",
    "pages.delta_reserve_bytes",
    "pages.manifest_interval_rounds",
    "pages.checkpoint_delta_bytes",
    "pages.checkpoint_instructions",
    "pages.manifest_lag_rounds",
    "consensus.block_ingress_bytes",
    "consensus.block_ingress_messages",
    "consensus.ingress_expiry_seconds",
    "consensus.ingress_drift_seconds",
    "consensus.execution_lag_blocks",
    "consensus.blocks_per_epoch",
    "gateway.body_bytes",
    // Which envelopes decode, and so which blocks get a vote.
    "gateway.read_state_paths",
    "gateway.read_state_path_labels",
    "gateway.delegations",
    "gateway.delegation_targets",
    "gateway.nonce_bytes",
    "outcalls.open",
    "outcalls.open_bytes",
    "outcalls.timeout_seconds",
];

impl Limits {
    /// Limits that all nodes of a subnet must have alike, by name and in the order of names.
    pub fn agreed(&self) -> Vec<(String, u64)> {
        let table = serde_json::to_value(self).unwrap_or_default();
        let mut agreed = Vec::new();
        for (group, limits) in table.as_object().into_iter().flatten() {
            for (name, value) in limits.as_object().into_iter().flatten() {
                let name = format!("{group}.{name}");
                let counts = GROUPS.contains(&group.as_str()) && !OWN.contains(&name.as_str());
                if counts || MORE.contains(&name.as_str()) {
                    let value = match value {
                        Value::Bool(value) => u64::from(*value),
                        value => value.as_u64().unwrap_or_default(),
                    };
                    agreed.push((name, value));
                }
            }
        }
        agreed.sort();
        agreed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_that_of_a_limit() {
        let limits = Limits::derive(512 << 20).unwrap();
        let agreed = limits.agreed();
        for name in MORE {
            assert!(agreed.iter().any(|(agreed, _)| agreed == name), "{name}");
        }
        let table = serde_json::to_value(&limits).unwrap();
        for name in OWN {
            let (group, limit) = name.split_once('.').unwrap();
            assert!(table[group].get(limit).is_some(), "{name}");
            assert!(!agreed.iter().any(|(agreed, _)| agreed == name), "{name}");
        }
        assert!(agreed.iter().any(|(name, value)| name == "subnet.canisters_max" && *value > 0));
    }
}
