//! Estimates the spread of one test with the spreads of all tests of a suite: moderated variances.
//!
//! Three baseline runs give a poor estimate of one test's spread (two degrees of freedom), but a
//! hundred tests show how spreads are distributed. The variances are taken for draws from a scaled
//! inverse chi-squared distribution, whose scale and degrees of freedom are fitted to the mean and
//! variance of their logarithms (Smyth, "Linear models and empirical Bayes methods", 2004, section
//! 6.2). A test's own variance is then averaged with the fitted one, each with the weight of its
//! degrees of freedom. When tests differ much in noise, the fit has few degrees of freedom and
//! every test keeps its own.
//!
//! Bounds: one pass over the tests. Must never know: what is measured.

use statrs::function::gamma::digamma;

use super::special::{trigamma, trigamma_inverse};

/// Least tests that are fitted to: fewer do not show how spreads are distributed.
pub(crate) const TESTS_MIN: usize = 10;
/// A spread below this part of the median one counts as this: the logarithm of zero is not defined.
const OF_MEDIAN_MIN: f64 = 1e-4;

/// The squares of a test's residuals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Squares {
    /// Sum of the squared residuals.
    pub(crate) sum: f64,
    /// Degrees of freedom, the number of values less the number of means taken from them.
    pub(crate) df: f64,
}

/// How variances are distributed over tests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Prior {
    /// Degrees of freedom: how many values of its own a test would need to know as much.
    pub(crate) df: f64,
    /// The variance of the fit.
    pub(crate) variance: f64,
}

impl Prior {
    /// Nothing is known.
    pub(crate) const NONE: Self = Self { df: 0.0, variance: 0.0 };

    /// Fits to all tests with degrees of freedom. [`Prior::NONE`] when they are fewer than
    /// [`TESTS_MIN`] or most of them do not spread at all.
    pub(crate) fn fit(tests: &[Squares]) -> Self {
        let mut variances: Vec<(f64, f64)> = tests
            .iter()
            .filter(|test| test.df > 0.0 && test.sum.is_finite())
            .map(|test| (test.sum / test.df, test.df))
            .collect();
        if variances.len() < TESTS_MIN {
            return Self::NONE;
        }
        variances.sort_by(|a, b| a.0.total_cmp(&b.0));
        let median = variances.get(variances.len() / 2).map_or(0.0, |(variance, _)| *variance);
        if median <= 0.0 {
            return Self::NONE;
        }
        let count = variances.len() as f64;
        let logs: Vec<f64> = variances
            .iter()
            .map(|(variance, df)| {
                variance.max(median * OF_MEDIAN_MIN).ln() - digamma(df / 2.0) + (df / 2.0).ln()
            })
            .collect();
        let mean = logs.iter().sum::<f64>() / count;
        let spread =
            logs.iter().map(|log| (log - mean) * (log - mean)).sum::<f64>() / (count - 1.0);
        let own = variances.iter().map(|(_, df)| trigamma(df / 2.0)).sum::<f64>() / count;
        // The information of all tests together bounds the information about any one of them.
        let df_max: f64 = variances.iter().map(|(_, df)| df).sum();
        let excess = spread - own;
        let df = if excess > 0.0 { (2.0 * trigamma_inverse(excess)).min(df_max) } else { df_max };
        Self { df, variance: (mean + digamma(df / 2.0) - (df / 2.0).ln()).exp() }
    }

    /// The variance of a test, and its degrees of freedom.
    pub(crate) fn moderate(self, own: Squares) -> (f64, f64) {
        let df = self.df + own.df;
        if df <= 0.0 {
            return (0.0, 0.0);
        }
        ((self.df * self.variance + own.sum) / df, df)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha20Rng;

    use super::*;
    use crate::stats::noise::normal;

    fn squares(rng: &mut ChaCha20Rng, sd: f64, values: usize) -> Squares {
        let values: Vec<f64> = (0..values).map(|_| normal(rng) * sd).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let sum = values.iter().map(|value| (value - mean) * (value - mean)).sum();
        Squares { sum, df: values.len() as f64 - 1.0 }
    }

    #[test]
    fn equal_noise_is_pooled_and_unequal_noise_is_left_to_each_test() {
        let rng = &mut ChaCha20Rng::seed_from_u64(1);
        let equal: Vec<_> = (0..300).map(|_| squares(rng, 0.03, 3)).collect();
        let prior = Prior::fit(&equal);
        assert!(prior.df > 30.0 && (prior.variance.sqrt() / 0.03 - 1.0).abs() < 0.1, "{prior:?}");
        let unequal: Vec<_> = (0..300)
            .map(|_| {
                let sd = 0.03 * (normal(rng) * 1.2).exp();
                squares(rng, sd, 3)
            })
            .collect();
        let prior = Prior::fit(&unequal);
        assert!(prior.df < 3.0, "{prior:?}");
        assert!(rng.r#gen::<f64>() < 1.0);
    }

    #[test]
    fn few_tests_and_tests_that_do_not_spread_say_nothing() {
        assert_eq!(Prior::fit(&[Squares { sum: 1.0, df: 2.0 }; 9]), Prior::NONE);
        assert_eq!(Prior::fit(&[Squares { sum: 0.0, df: 2.0 }; 50]), Prior::NONE);
        assert_eq!(Prior::NONE.moderate(Squares { sum: 0.0, df: 0.0 }), (0.0, 0.0));
        let some: Vec<_> =
            (0..20).map(|n| Squares { sum: if n < 5 { 0.0 } else { 1e-3 }, df: 2.0 }).collect();
        let prior = Prior::fit(&some);
        assert!(prior.df > 0.0 && prior.variance.is_finite() && prior.variance > 0.0, "{prior:?}");
    }
}
