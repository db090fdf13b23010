//! Random numbers for resampling and for the simulations in tests.

use rand::Rng;

/// A standard normal deviate.
pub(crate) fn normal(rng: &mut impl Rng) -> f64 {
    // Box and Muller; the logarithm needs a number above 0.
    let radius = (-2.0 * (1.0 - rng.r#gen::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.r#gen::<f64>()).cos()
}

/// A deviate of Student's t with `df` degrees of freedom.
pub(crate) fn heavy(rng: &mut impl Rng, df: usize) -> f64 {
    let squares: f64 = (0..df).map(|_| normal(rng).powi(2)).sum();
    normal(rng) / (squares / df as f64).max(f64::MIN_POSITIVE).sqrt()
}
