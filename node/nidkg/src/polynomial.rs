//! The public polynomial of a committee, from the public keys of its shares.
//!
//! Share `i` is the value at `i + 1` of a polynomial whose value at 0 is the key. A committee keeps
//! the values, times the generator of G2; software that wants the coefficients instead gets them by
//! interpolation in the exponent: everything is public, so this is only arithmetic.
//!
//! Bounds: `threshold^2` scalars of work, and as many multi-scalar multiplications of `threshold`
//! points as there are coefficients. For 27 of 40 that is a fifth of a second on one thread, done
//! once per committee.

use crate::{
    curve::{G2, G2Affine, Scalar},
    threshold::{BlsError, Committee},
};

impl Committee {
    /// The coefficients of the public polynomial, lowest first, compressed: as many as the
    /// threshold, the first is the public key.
    ///
    /// Fails when the keys are not those of one polynomial of that degree, or the public key is not
    /// its value at 0: such a committee was put together wrongly, and its shares would not
    /// combine.
    pub fn coefficients(&self) -> Result<Vec<[u8; 96]>, BlsError> {
        let bad =
            BlsError::BadThreshold { threshold: self.threshold, nodes: self.shares.len() as u32 };
        let known = self
            .shares
            .get(..self.threshold as usize)
            .filter(|known| !known.is_empty())
            .ok_or(bad)?;
        let points: Vec<G2Affine> = known.iter().map(|key| key.point()).collect();
        let weights = basis(points.len());
        let coefficients: Vec<G2> = (0..points.len())
            .map(|power| {
                G2::msm(&points, &weights.iter().map(|weight| weight[power]).collect::<Vec<_>>())
            })
            .collect();

        // The first values are met by construction; the key and the other values are what there is
        // to check.
        let at = |place: u64| {
            let horner = |sum: G2, coefficient: &G2| sum.mul_public_u64(place).add(coefficient);
            coefficients.iter().rev().fold(G2::identity(), horner).to_affine()
        };
        let others = self.shares.iter().enumerate().skip(points.len());
        let fits = at(0).to_compressed() == *self.public_key.as_bytes()
            && others
                .into_iter()
                .all(|(index, key)| at(index as u64 + 1).to_compressed() == *key.as_bytes());
        if !fits {
            return Err(BlsError::NotOnePolynomial { threshold: self.threshold });
        }
        Ok(G2::all_to_affine(&coefficients).into_iter().map(G2Affine::to_compressed).collect())
    }
}

/// For each place `1..=count` the coefficients of the polynomial that is 1 there and 0 at the
/// others.
fn basis(count: usize) -> Vec<Vec<Scalar>> {
    let places: Vec<Scalar> = (1..=count as u64).map(Scalar::from_u64).collect();
    // The product of all (x - place), lowest coefficient first.
    let mut product = vec![Scalar::one()];
    for place in &places {
        let shifted = std::iter::once(Scalar::zero()).chain(product.iter().copied());
        let scaled =
            product.iter().map(|coefficient| coefficient.mul(place)).chain([Scalar::zero()]);
        product = shifted.zip(scaled).map(|(high, low)| high.sub(&low)).collect();
    }
    places
        .iter()
        .map(|place| {
            // Divided by (x - place), from the highest coefficient down; nothing is left over.
            let mut quotient: Vec<Scalar> = product[1..]
                .iter()
                .rev()
                .scan(Scalar::zero(), |carry, coefficient| {
                    *carry = carry.mul(place).add(coefficient);
                    Some(*carry)
                })
                .collect();
            quotient.reverse();
            let scale = crate::curve::evaluate(&quotient, place).inverse_of_public();
            quotient.iter().map(|coefficient| coefficient.mul(&scale)).collect()
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{deal, threshold::PublicKey};

    #[test]
    fn coefficients_give_every_share_and_the_key() {
        for (nodes, threshold) in [(1, 1), (4, 3), (7, 5), (5, 5), (13, 9)] {
            let (committee, _) =
                deal(nodes, threshold, &mut StdRng::seed_from_u64(u64::from(nodes))).unwrap();
            let coefficients = committee.coefficients().unwrap();
            assert_eq!(coefficients.len(), threshold as usize);
            assert_eq!(coefficients[0], *committee.public_key.as_bytes());
            // By powers, where the code under test uses Horner's rule.
            for (index, share) in committee.shares.iter().enumerate() {
                let powers =
                    Scalar::powers(&Scalar::from_u64(index as u64 + 1), coefficients.len());
                let sum =
                    coefficients.iter().zip(powers).fold(G2::identity(), |sum, (bytes, power)| {
                        let point = G2Affine::from_compressed_on_curve(bytes).unwrap();
                        sum.add(&point.to_point().mul(&power))
                    });
                assert_eq!(PublicKey::from_point(sum.to_affine()).unwrap(), *share);
            }
        }
    }

    #[test]
    fn a_committee_that_does_not_fit_together_is_refused() {
        let (mut committee, _) = deal(4, 3, &mut StdRng::seed_from_u64(9)).unwrap();
        let (other, _) = deal(4, 3, &mut StdRng::seed_from_u64(10)).unwrap();
        let error = BlsError::NotOnePolynomial { threshold: 3 };
        for index in 0..4 {
            let mut changed = committee.clone();
            changed.shares[index] = other.shares[index];
            assert_eq!(changed.coefficients().unwrap_err(), error, "share {index}");
        }
        let mut changed = committee.clone();
        changed.public_key = other.public_key;
        assert_eq!(changed.coefficients().unwrap_err(), error, "public key");
        for threshold in [0, 5] {
            committee.threshold = threshold;
            assert_eq!(
                committee.coefficients().unwrap_err(),
                BlsError::BadThreshold { threshold, nodes: 4 }
            );
        }
    }
}
