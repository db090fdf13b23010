//! The functions that the fit of a prior needs and that the statistics crate lacks.
//!
//! Bounds: iterations are fixed. Must never know: the measured quantity.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

/// Smallest probability that is distinguished from zero.
pub(crate) const PROBABILITY_MIN: f64 = 1e-300;
/// Degrees of freedom from which Student's distribution is taken for the normal one.
const DF_NORMAL: f64 = 1e6;
const BISECTIONS: usize = 200;

/// The second derivative of the logarithm of the gamma function, for positive `x`.
pub(crate) fn trigamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    // The series below is exact to 1e-12 from 12 on.
    while x < 12.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series =
        square * (1.0 / 6.0 - square * (1.0 / 30.0 - square * (1.0 / 42.0 - square / 30.0)));
    sum + 1.0 / x + square / 2.0 + series / x
}

/// Where [`trigamma`] is `y`; `y` must be positive.
pub(crate) fn trigamma_inverse(y: f64) -> f64 {
    let (mut low, mut high) = (1e-9_f64.ln(), 1e9_f64.ln());
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        // It falls.
        if trigamma(middle.exp()) > y { low = middle } else { high = middle }
    }
    low.exp()
}

/// Probability that Student's t with `df` degrees of freedom is at least as far from 0 as `t`.
pub(crate) fn two_sided(t: f64, df: f64) -> f64 {
    let t = t.abs();
    if t.is_nan() || df.is_nan() || df <= 0.0 {
        return 1.0;
    }
    (2.0 * upper(t, df)).clamp(PROBABILITY_MIN, 1.0)
}

/// Probability that Student's t with `df` degrees of freedom is above `t`.
pub(crate) fn upper(t: f64, df: f64) -> f64 {
    if df >= DF_NORMAL {
        return normal().map_or(0.5, |normal| normal.sf(t));
    }
    StudentsT::new(0.0, 1.0, df).map_or(0.5, |student| student.sf(t))
}

/// The `t` that is exceeded, on both sides together, with probability `p`.
pub fn two_sided_inverse(p: f64, df: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while two_sided(high, df) > p && high < 1e12 {
        high *= 4.0;
    }
    for _ in 0..BISECTIONS / 2 {
        let middle = f64::midpoint(low, high);
        if two_sided(middle, df) > p { low = middle } else { high = middle }
    }
    high
}

/// The normal deviate that is exceeded, on both sides together, with probability `p`.
pub(crate) fn deviate(p: f64) -> f64 {
    let p = p.clamp(PROBABILITY_MIN, 1.0);
    normal().map_or(0.0, |normal| -normal.inverse_cdf(p / 2.0))
}

fn normal() -> Option<Normal> {
    Normal::new(0.0, 1.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_agree_with_published_tables() {
        // pi^2 / 6, pi^2 / 2.
        assert!((trigamma(1.0) - 1.644_934_066_848).abs() < 1e-10);
        assert!((trigamma(0.5) - 4.934_802_200_545).abs() < 1e-10);
        for x in [0.01, 0.3, 1.0, 7.0, 500.0] {
            assert!((trigamma_inverse(trigamma(x)) / x - 1.0).abs() < 1e-6, "{x}");
        }
        assert!((two_sided(4.302_653, 2.0) - 0.05).abs() < 1e-6);
        assert!((two_sided(12.7062, 1.0) - 0.05).abs() < 1e-6);
        assert!((two_sided_inverse(0.05, 2.0) - 4.302_653).abs() < 1e-4);
        assert!((deviate(0.05) - 1.959_964).abs() < 1e-5);
        assert!((two_sided(1.959_964, 1e9) - 0.05).abs() < 1e-6);
        assert_eq!(two_sided(f64::NAN, 2.0), 1.0);
        assert!(deviate(0.0) > 30.0, "a probability of nothing is far out, not infinite");
    }
}
