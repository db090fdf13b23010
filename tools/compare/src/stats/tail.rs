//! Checks with the baseline's own runs whether distant values are as rare as in the model.
//!
//! Every run of a side that has several is left out in turn and judged against the rest as if it
//! were the candidate. Nothing changed, so the deviates should be normal; where the machine has
//! heavier tails (a run in fifty that is twice as long), they are not. A scaled Student's
//! distribution is fitted to them by maximum likelihood, and a candidate's probability is never
//! taken as smaller than that distribution gives.
//!
//! Bounds: at most [`DEVIATES_MAX`] deviates. Must never know: what is measured.

use statrs::function::gamma::ln_gamma;

use super::special::{deviate, two_sided};

/// Most deviates used for a fit; of more, this number is taken at equal steps.
const DEVIATES_MAX: usize = 20_000;
/// Fewer than this are not enough to fit a tail.
const DEVIATES_MIN: usize = 30;
/// Degrees of freedom that are tried.
const SHAPES: [f64; 14] =
    [1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 40.0, 80.0];
/// How much less likely than the best fit a tail may be, as a logarithm of likelihood.
const DOUBT: f64 = 2.0;
const ITERATIONS: usize = 30;

/// Distribution of distant values that occur without a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tail {
    /// Degrees of freedom; infinite is the normal distribution.
    pub(crate) df: f64,
    /// Divisor of deviates.
    pub(crate) scale: f64,
    /// How many deviates it was fitted to; 0 when it is the model's.
    pub(crate) deviates: usize,
}

impl Tail {
    /// As in the model.
    pub(crate) const NORMAL: Self = Self { df: f64::INFINITY, scale: 1.0, deviates: 0 };

    /// Fits to deviates of which nothing is meant.
    pub(crate) fn fit(deviates: &[f64]) -> Self {
        let step = deviates.len().div_ceil(DEVIATES_MAX).max(1);
        let squares: Vec<f64> =
            deviates.iter().step_by(step).filter(|z| z.is_finite()).map(|z| z * z).collect();
        if squares.len() < DEVIATES_MIN {
            return Self::NORMAL;
        }
        let count = squares.len() as f64;
        let variance = squares.iter().sum::<f64>() / count;
        let likelihood =
            -0.5 * count * (variance.max(1e-12) * std::f64::consts::TAU).ln() - count / 2.0;
        // The heaviest tail that the deviates do not contradict: three runs are little evidence
        // about tails.
        let mut fits: Vec<(f64, f64, f64)> = SHAPES
            .iter()
            .map(|df| {
                let (likelihood, variance) = student(&squares, *df);
                (likelihood, *df, variance)
            })
            .collect();
        fits.push((likelihood, f64::INFINITY, variance));
        let most = fits.iter().map(|fit| fit.0).fold(f64::NEG_INFINITY, f64::max);
        let heaviest = fits.iter().find(|fit| fit.0 >= most - DOUBT);
        let best = heaviest.copied().unwrap_or((likelihood, f64::INFINITY, variance));
        Self { df: best.1, scale: best.2.sqrt(), deviates: squares.len() }
    }

    /// The probability of something that has probability `p` in the model.
    pub(crate) fn widen(self, p: f64) -> f64 {
        if self.deviates == 0 || self.scale <= 0.0 {
            return p;
        }
        p.max(two_sided(deviate(p) / self.scale, self.df))
    }
}

/// The best scale for `df`: its likelihood and its square.
fn student(squares: &[f64], df: f64) -> (f64, f64) {
    let count = squares.len() as f64;
    let mut variance = 1.0_f64;
    for _ in 0..ITERATIONS {
        let weighted = squares.iter().map(|square| square * (df + 1.0) / (df + square / variance));
        variance = (weighted.sum::<f64>() / count).max(1e-12);
    }
    let one = ln_gamma((df + 1.0) / 2.0)
        - ln_gamma(df / 2.0)
        - 0.5 * (df * std::f64::consts::PI * variance).ln();
    let rest: f64 = squares.iter().map(|square| (square / (df * variance)).ln_1p()).sum();
    (count * one - (df + 1.0) / 2.0 * rest, variance)
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha20Rng;

    use super::*;
    use crate::stats::noise::{heavy, normal};

    #[test]
    fn tails_are_found_where_they_are() {
        let rng = &mut ChaCha20Rng::seed_from_u64(2);
        let calm: Vec<f64> = (0..500).map(|_| normal(rng)).collect();
        let tail = Tail::fit(&calm);
        assert!(tail.df > 8.0 && (tail.scale - 1.0).abs() < 0.1, "{tail:?}");
        assert!(tail.widen(1e-6) < 1e-3);
        let wild: Vec<f64> = (0..500).map(|_| heavy(rng, 3)).collect();
        let tail = Tail::fit(&wild);
        assert!(tail.df < 6.0, "{tail:?}");
        assert!(tail.widen(1e-6) > 1e-4, "what is rare in the model is not here");
        assert_eq!(Tail::fit(&calm[..10]), Tail::NORMAL);
        assert_eq!(Tail::NORMAL.widen(0.25), 0.25);
    }
}
