//! Analysis of alternating turns: each turn is a pair, and both runs of a pair share the state of
//! the machine.
//!
//! The difference of a turn is the logarithm of candidate over baseline. If nothing changed, its
//! sign is random: the probability of a mean as far from zero is counted over all assignments of
//! signs (or many random ones). How many turns a difference needs follows from the spread of the
//! differences alone, never from their mean, so that ending by it does not favour a verdict.
//!
//! Bounds: turns. Must never know: the measured quantity.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::stats::special::two_sided_inverse;

/// Turns below which no signs can be rarer than 5 %.
pub const TURNS_MIN: usize = 6;
/// Turns whose signs are all counted.
const EXACT_MAX: usize = 14;
const DRAWS: u32 = 20_000;
const SEED: u64 = 0x7061_6972;
/// Probability with which an existing difference is detected.
pub(crate) const POWER: f64 = 0.8;

/// Analysis of one figure over all turns.
#[derive(Clone, Debug, PartialEq)]
pub struct PairedEstimate {
    /// Mean logarithm of candidate over baseline.
    pub mean: f64,
    /// Standard deviation of it over turns.
    pub spread: f64,
    /// That it is as far from zero by chance; none with fewer than [`TURNS_MIN`] turns.
    pub p: Option<f64>,
    /// Half the width of the interval that has the change in it with 95 %.
    pub half_width: f64,
}

/// `differences`: of each turn, at least two.
pub fn estimate_change(differences: &[f64]) -> Option<PairedEstimate> {
    let count = differences.len();
    if count < 2 {
        return None;
    }
    let mean = differences.iter().sum::<f64>() / count as f64;
    let squares: f64 = differences.iter().map(|one| (one - mean).powi(2)).sum();
    let spread = (squares / (count as f64 - 1.0)).sqrt();
    Some(PairedEstimate {
        mean,
        spread,
        p: (count >= TURNS_MIN).then(|| signs(differences)),
        half_width: two_sided_inverse(0.05, count as f64 - 1.0) * spread / (count as f64).sqrt(),
    })
}

/// Part of all ways to turn signs over that bring the sum as far from zero.
fn signs(differences: &[f64]) -> f64 {
    let seen = differences.iter().sum::<f64>().abs() * (1.0 - 1e-12);
    let sum = |signs: u64| {
        let one = |(index, value): (usize, &f64)| {
            if signs >> (index % 64) & 1 == 1 { -value } else { *value }
        };
        differences.iter().enumerate().map(one).sum::<f64>().abs()
    };
    if differences.len() <= EXACT_MAX {
        let ways = 1_u64 << differences.len();
        let far = (0..ways).filter(|signs| sum(*signs) >= seen).count();
        return far as f64 / ways as f64;
    }
    let rng = &mut ChaCha20Rng::seed_from_u64(SEED);
    let mut far = 1_u32;
    for _ in 0..DRAWS {
        let drawn: f64 =
            differences.iter().map(|value| if rng.r#gen::<bool>() { -value } else { *value }).sum();
        far += u32::from(drawn.abs() >= seen);
    }
    f64::from(far) / f64::from(DRAWS + 1)
}

/// Turns after which a change by `part` is detected with probability [`POWER`], when it is the only
/// one of `asked` figures that changed: the least probability must meet its bound (Benjamini and
/// Hochberg).
pub(crate) fn turns_needed(spread: f64, part: f64, asked: usize) -> usize {
    const MOST: usize = 1_000_000;
    let wanted = part.ln_1p();
    let error = 0.05 / asked.max(1) as f64;
    // Fewer turns have no signs as rare as that.
    let least = TURNS_MIN.max((2.0 / error).log2().ceil() as usize);
    if spread <= 0.0 || wanted <= 0.0 {
        return least;
    }
    // The deviate that is exceeded with 20 % on one side.
    let power = two_sided_inverse(2.0 * (1.0 - POWER), 1e9);
    let enough = |turns: usize| {
        let errors = two_sided_inverse(error, turns as f64 - 1.0) + power;
        errors * spread / (turns as f64).sqrt() <= wanted
    };
    let (mut low, mut high) = (least, least);
    while !enough(high) && high < MOST {
        low = high;
        high *= 2;
    }
    while low + 1 < high {
        let middle = usize::midpoint(low, high);
        if enough(middle) { high = middle } else { low = middle }
    }
    if enough(low) { low } else { high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::noise::normal;

    #[test]
    fn signs_are_counted() {
        let all_up = estimate_change(&[0.1, 0.2, 0.1, 0.15, 0.12, 0.11]).unwrap();
        assert_eq!(all_up.p, Some(2.0 / 64.0));
        assert_eq!(
            estimate_change(&[0.1; 5]).unwrap().p,
            None,
            "five turns cannot be rarer than 6 %"
        );
        assert_eq!(estimate_change(&[0.0; 8]).unwrap().p, Some(1.0));
        assert_eq!(estimate_change(&[0.1]), None);
    }

    #[test]
    fn a_difference_is_told_after_as_many_turns_as_said_and_none_is_not() {
        let rng = &mut ChaCha20Rng::seed_from_u64(3);
        let turns = turns_needed(0.05, 0.05, 1);
        assert!((8..=14).contains(&turns), "{turns}");
        let rounds = 1000;
        let mut told = |mean: f64| {
            let mut called = 0;
            for _ in 0..rounds {
                let differences: Vec<f64> = (0..turns).map(|_| mean + 0.05 * normal(rng)).collect();
                called += u32::from(estimate_change(&differences).unwrap().p.unwrap() <= 0.05);
            }
            f64::from(called) / f64::from(rounds)
        };
        let (found, wrong) = (told(0.05_f64.ln_1p()), told(0.0));
        assert!((0.74..0.9).contains(&found), "{found}");
        assert!(wrong < 0.05 + 0.021, "{wrong}");
        assert_eq!(turns_needed(0.0, 0.05, 1), TURNS_MIN);
        assert!(turns_needed(0.05, 0.01, 1) > 190);
        // Of 64 figures, one is detected at a probability of 0.05 / 64, which takes 12 turns at
        // least.
        assert_eq!(turns_needed(0.0, 0.05, 64), 12);
        assert!(turns_needed(0.05, 0.05, 64) > turns);
    }
}
