//! Cycles: balances, accepting, burning, and what things cost.

use state::Cycles;

use super::{Failure, Host};

/// Names of threshold keys that have a price. The subnet need not hold them: a call that uses one
/// is answered by the management canister.
const KEY_NAMES: [&str; 3] = ["dfx_test_key", "test_key_1", "key_1"];

/// Longest key name that is checked; no key has a longer name.
const KEY_NAME_BYTES: u64 = 64;

/// Two words as an amount.
pub(super) fn amount(high: u64, low: u64) -> Cycles {
    Cycles::from(high) << 64 | Cycles::from(low)
}

/// Schemes of threshold keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Ecdsa = 0,
    Schnorr = 1,
    VetKd = 2,
}

impl Host {
    pub(super) fn liquid_balance(&self) -> Cycles {
        self.changes.balance.saturating_sub(self.context.freezing_threshold)
    }

    pub(super) fn write_cycles(&mut self, dst: u64, amount: Cycles) -> Result<(), Failure> {
        self.write_heap(dst, &amount.to_le_bytes())
    }

    pub(super) fn in_64_bits(&self, amount: Cycles) -> Result<u64, Failure> {
        let function = self.function;
        u64::try_from(amount).map_err(|_| {
            Failure::trapped(&format!(
                "ic0.{function}: {amount} cycles do not fit 64 bits, use ic0.{function}128"
            ))
        })
    }

    /// For the canister that mints cycles on the public network. No canister of this subnet does.
    pub(super) fn mint_cycles(&self, amount: Cycles) -> Result<u64, Failure> {
        Err(self.violation(format_args!(
            "this canister is not the one that mints cycles and cannot make {amount}"
        )))
    }

    pub(super) fn msg_cycles_accept(&mut self, amount_max: Cycles) -> Cycles {
        // The balance and the cycles of the call under construction stay one amount together,
        // because those may be returned to the balance.
        let held = self.changes.balance
            + self.outgoing().pending_call.as_ref().map_or(0, |call| call.cycles);
        let amount = amount_max.min(self.cycles_available).min(Cycles::MAX - held);
        self.cycles_available -= amount;
        self.changes.cycles_accepted += amount;
        self.changes.balance += amount;
        amount
    }

    pub(super) fn cycles_burn(&mut self, amount: Cycles) -> Cycles {
        let amount =
            amount.min(self.liquid_balance()).min(Cycles::MAX - self.changes.cycles_burned);
        self.changes.balance -= amount;
        self.changes.cycles_burned += amount;
        amount
    }

    /// `ic0.cost_sign_with_ecdsa` and its like: 0 and the price at `dst`, or 1 for an unknown curve
    /// or algorithm, 2 for an unknown key.
    pub(super) fn cost_of_key(
        &mut self,
        scheme: Scheme,
        src: u64,
        size: u64,
        variant: u32,
        dst: u64,
    ) -> Result<u32, Failure> {
        self.heap_bounds(src, size)?;
        self.heap_bounds(dst, 16)?;
        let variants = if scheme == Scheme::Schnorr { 2 } else { 1 };
        if variant >= variants {
            return Ok(1);
        }
        let name = if size <= KEY_NAME_BYTES { self.read_heap(src, size)? } else { &[] };
        if !KEY_NAMES.iter().any(|known| known.as_bytes() == name) {
            return Ok(2);
        }
        let price = self.context.costs.signing[scheme as usize];
        self.write_cycles(dst, price)?;
        Ok(0)
    }
}
