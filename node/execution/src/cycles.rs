//! Prices, and the balance that a canister must keep.
//!
//! The prices are those of a subnet of 13 nodes, which development tools expect. An execution is
//! prepaid for the most it may use and the rest is returned; a call prepays its transmission, the
//! largest response and the execution of its callback. Nothing here changes a balance: the
//! functions only compute sums.

use limits::Limits;
use sandbox::CostTable;
use state::{CanisterState, Cycles};

const GIB: Cycles = 1 << 30;
const DAY_SECONDS: Cycles = 86_400;

/// Cycles of a canister made by `provisional_create_canister_with_cycles` without an amount.
pub(crate) const DEFAULT_PROVISIONAL_BALANCE: Cycles = 100_000_000_000_000;

/// Prices in cycles on a subnet of 13 nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostSchedule {
    /// Per message executed.
    pub message: Cycles,
    /// Per ten instructions.
    pub ten_instructions: Cycles,
    /// Per ingress message inducted.
    pub ingress: Cycles,
    /// Per byte of it.
    pub ingress_byte: Cycles,
    /// Per call, response included.
    pub call: Cycles,
    /// Per byte of request or response.
    pub call_byte: Cycles,
    /// Per canister created.
    pub create_canister: Cycles,
    /// Per GiB and second of storage.
    pub gib_second: Cycles,
    /// Per percent of a core and second.
    pub compute_percent_second: Cycles,
    /// HTTPS outcall: base, per request byte, per response byte.
    pub http_request: [Cycles; 3],
}

impl Default for CostSchedule {
    fn default() -> Self {
        Self {
            message: 5_000_000,
            ten_instructions: 10,
            ingress: 1_200_000,
            ingress_byte: 2_000,
            call: 260_000,
            call_byte: 1_000,
            create_canister: 500_000_000_000,
            gib_second: 127_000,
            compute_percent_second: 10_000_000,
            http_request: [49_140_000, 5_200, 10_400],
        }
    }
}

impl CostSchedule {
    /// Prices on a system subnet, where canisters pay nothing.
    pub fn free() -> Self {
        Self {
            message: 0,
            ten_instructions: 0,
            ingress: 0,
            ingress_byte: 0,
            call: 0,
            call_byte: 0,
            create_canister: 0,
            gib_second: 0,
            compute_percent_second: 0,
            http_request: [0; 3],
        }
    }

    /// Price of executing a message that used `instructions` instructions.
    pub fn execution(&self, instructions: u64) -> Cycles {
        self.message + Cycles::from(instructions) * self.ten_instructions / 10
    }

    /// Price of inducting an ingress message of `bytes` bytes.
    pub fn induction(&self, bytes: u64) -> Cycles {
        self.ingress + Cycles::from(bytes) * self.ingress_byte
    }

    /// Of a call and its response.
    pub fn transmission(&self, request_bytes: u64, response_bytes: u64) -> Cycles {
        self.call + (Cycles::from(request_bytes) + Cycles::from(response_bytes)) * self.call_byte
    }

    /// Of storing `bytes` for `seconds`.
    pub fn storage(&self, bytes: u64, seconds: u64) -> Cycles {
        Cycles::from(bytes) * self.gib_second * Cycles::from(seconds) / GIB
    }

    /// Of a compute allocation for `seconds`.
    pub fn compute(&self, percent: u64, seconds: u64) -> Cycles {
        Cycles::from(percent) * self.compute_percent_second * Cycles::from(seconds)
    }

    /// Cycles that an idle canister burns per day.
    pub fn idle_burn_per_day(&self, memory_bytes: u64, compute_percent: u64) -> Cycles {
        Cycles::from(memory_bytes) * self.gib_second * DAY_SECONDS / GIB
            + Cycles::from(compute_percent) * self.compute_percent_second * DAY_SECONDS
    }

    /// Balance that a canister must keep to last its freezing threshold, if it took `memory_bytes`.
    pub fn freezing_limit_with(&self, canister: &CanisterState, memory_bytes: u64) -> Cycles {
        let memory = memory_bytes.max(canister.settings.memory_allocation);
        let per_day = self.idle_burn_per_day(memory, canister.settings.compute_allocation);
        let limit = per_day.saturating_mul(Cycles::from(canister.settings.freezing_threshold))
            / DAY_SECONDS;
        limit.saturating_sub(canister.reserved_cycles)
    }

    /// Balance that a canister must keep to last its freezing threshold.
    pub fn freezing_limit(&self, canister: &CanisterState) -> Cycles {
        self.freezing_limit_with(canister, canister.memory_usage().total())
    }

    /// Cycles above the freezing limit.
    pub fn liquid(&self, canister: &CanisterState) -> Cycles {
        canister.cycles.saturating_sub(self.freezing_limit(canister))
    }

    /// Prices that workers need.
    pub fn table(&self, limits: &Limits) -> CostTable {
        CostTable {
            call_base: self.call,
            call_per_byte: self.call_byte,
            response_reservation: Cycles::from(limits.subnet.message_payload_bytes)
                * self.call_byte,
            callback_execution_reservation: self
                .execution(limits.execution.instructions_per_message),
            create_canister: self.create_canister,
            http_request: self.http_request,
            signing: [26_153_846_153, 26_153_846_153, 26_153_846_153],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ic_principal::Principal;
    use state::{Settings, Time};

    #[test]
    fn fees_follow_size_and_work() {
        let costs = CostSchedule::default();
        assert_eq!(costs.execution(0), 5_000_000);
        assert_eq!(costs.execution(1_000), 5_001_000);
        assert_eq!(costs.transmission(1, 2), 263_000);
        assert_eq!(costs.storage(1 << 30, 10), 1_270_000);
    }

    #[test]
    fn the_freezing_limit_grows_with_memory_and_threshold() {
        let costs = CostSchedule::default();
        let mut canister = CanisterState::new(
            Principal::from_slice(&[1, 1]),
            vec![],
            Settings::default(),
            1_000,
            Time(0),
        );
        assert_eq!(costs.freezing_limit_with(&canister, 1 << 30), 127_000 * 2_592_000);
        canister.settings.freezing_threshold = 0;
        assert!(canister.cycles >= costs.freezing_limit(&canister));
        canister.settings.freezing_threshold = u64::MAX;
        canister.settings.compute_allocation = 100;
        assert!(canister.cycles < costs.freezing_limit(&canister));
    }
}
