//! Cycles: one amount, and sums of many amounts.
//!
//! An amount (a balance, what a call carries) is a `u128`. With provisional methods, all amounts
//! together may be more than a `u128` holds, so any sum over canisters or over time is a
//! [`CyclesTotal`]. This module must not know who owns what.

use std::iter::Sum;
use std::ops::{Add, AddAssign, SubAssign};

use serde::{Deserialize, Serialize};

use crate::{CanisterState, Cycles};

/// A sum of amounts of cycles, in 192 bits. Arithmetic is modulo 2^192, which fewer than 2^64
/// amounts cannot reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CyclesTotal {
    // The order of the fields is the order of totals.
    high: u64,
    low: Cycles,
}

impl CyclesTotal {
    /// A total of no cycles.
    pub const ZERO: Self = Self { high: 0, low: 0 };

    /// The sum if it fits 128 bits, else the largest amount: for places whose format has no more
    /// room.
    pub fn saturated(self) -> Cycles {
        if self.high == 0 { self.low } else { Cycles::MAX }
    }

    /// Bits from 128 up, and the 128 bits below.
    pub fn parts(self) -> (u64, Cycles) {
        (self.high, self.low)
    }
}

impl From<Cycles> for CyclesTotal {
    fn from(amount: Cycles) -> Self {
        Self { high: 0, low: amount }
    }
}

impl PartialEq<Cycles> for CyclesTotal {
    fn eq(&self, amount: &Cycles) -> bool {
        *self == Self::from(*amount)
    }
}

impl PartialOrd<Cycles> for CyclesTotal {
    fn partial_cmp(&self, amount: &Cycles) -> Option<std::cmp::Ordering> {
        Some(self.cmp(&Self::from(*amount)))
    }
}

impl<T: Into<Self>> AddAssign<T> for CyclesTotal {
    fn add_assign(&mut self, other: T) {
        let other = other.into();
        let (low, carry) = self.low.overflowing_add(other.low);
        self.low = low;
        self.high = self.high.wrapping_add(other.high).wrapping_add(u64::from(carry));
    }
}

impl<T: Into<Self>> SubAssign<T> for CyclesTotal {
    fn sub_assign(&mut self, other: T) {
        let other: Self = other.into();
        debug_assert!(*self >= other, "{other:?} is taken off {self:?}");
        let (low, borrow) = self.low.overflowing_sub(other.low);
        self.low = low;
        self.high = self.high.wrapping_sub(other.high).wrapping_sub(u64::from(borrow));
    }
}

impl<T: Into<Self>> Add<T> for CyclesTotal {
    type Output = Self;

    fn add(mut self, other: T) -> Self {
        self += other;
        self
    }
}

impl<T: Into<Self>> Sum<T> for CyclesTotal {
    fn sum<I: Iterator<Item = T>>(amounts: I) -> Self {
        let mut total = Self::ZERO;
        amounts.for_each(|amount| total += amount);
        total
    }
}

impl CanisterState {
    /// Returns cycles to a canister. A balance holds at most 2^128 - 1: any excess is lost, and
    /// counted as burned. Where cycles can still be returned to their sender,
    /// [`Self::room_for_cycles`] is checked first.
    pub fn credit(&mut self, amount: Cycles) {
        let before = CyclesTotal::from(self.cycles) + self.consumption.burned;
        let fits = amount.min(Cycles::MAX - self.cycles);
        self.cycles += fits;
        self.consumption.burned += amount - fits;
        debug_assert_eq!(
            CyclesTotal::from(self.cycles) + self.consumption.burned,
            before + amount,
            "{amount} cycles are credited or burned"
        );
    }

    /// Takes cycles off the balance. Callers check first that it has them.
    ///
    /// # Panics
    /// When it has less: a balance that wraps around would create cycles.
    pub fn debit(&mut self, amount: Cycles) {
        assert!(self.cycles >= amount, "{} is to pay {amount} of {} cycles", self.id, self.cycles);
        self.cycles -= amount;
    }

    /// Cycles that the balance can still take.
    pub fn room_for_cycles(&self) -> Cycles {
        Cycles::MAX - self.cycles
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ic_principal::Principal;

    use super::*;
    use crate::{Settings, Time};

    #[test]
    fn totals_carry_and_borrow() {
        let mut total = CyclesTotal::from(Cycles::MAX);
        total += Cycles::MAX;
        total += 2u128;
        assert_eq!(total.parts(), (2, 0));
        assert_eq!(total.saturated(), Cycles::MAX);
        assert!(total > Cycles::MAX);
        total -= 1u128;
        assert_eq!(total.parts(), (1, Cycles::MAX));
        total -= CyclesTotal::from(Cycles::MAX) + 1u128;
        assert_eq!(total, Cycles::MAX);
        assert_eq!(total.saturated(), Cycles::MAX);
        let sum: CyclesTotal = [Cycles::MAX, 1, 5].into_iter().sum();
        assert_eq!(sum.parts(), (1, 5));
    }

    #[test]
    fn a_full_balance_takes_nothing_and_nothing_goes_missing() {
        let settings = Settings::default();
        let mut canister = CanisterState::new(
            Principal::from_slice(&[1, 1]),
            vec![],
            settings,
            Cycles::MAX - 3,
            Time(0),
        );
        assert_eq!(canister.room_for_cycles(), 3);
        let before = canister.cycles_held();
        canister.credit(10);
        assert_eq!((canister.cycles, canister.consumption.burned), (Cycles::MAX, 7u128.into()));
        assert_eq!(canister.cycles_held(), before + 10u128);
        canister.credit(Cycles::MAX);
        canister.credit(Cycles::MAX);
        assert_eq!(canister.cycles_held(), before + 10u128 + Cycles::MAX + Cycles::MAX);
    }
}
