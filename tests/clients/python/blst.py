"""The four names of the `blst` binding that the client's certificate check uses, on top of py_ecc.

icp-py-core verifies certificates with the Python binding of blst, which is built from source and not on PyPI. This
module stands in for that arithmetic and for nothing else: which bytes are signed, by which key, and whether the result
counts is decided by the client, unmodified. A verification takes about a third of a second.
"""

import hashlib

from py_ecc.bls.hash_to_curve import hash_to_G1
from py_ecc.bls.point_compression import decompress_G1, decompress_G2
from py_ecc.optimized_bls12_381 import (
    FQ12,
    G2,
    curve_order,
    final_exponentiate,
    is_inf,
    multiply,
    neg,
    pairing,
)

BLST_SUCCESS = 0
BLST_VERIFY_FAIL = 5


def _checked(point):
    """A point outside the prime-order subgroup, or at infinity, is no key and no signature."""
    if is_inf(point) or not is_inf(multiply(point, curve_order)):
        raise ValueError("the point is not in the subgroup")
    return point


class P1_Affine:
    """A signature: 48 bytes, compressed."""

    def __init__(self, compressed):
        self.point = _checked(decompress_G1(int.from_bytes(compressed, "big")))

    def core_verify(self, public_key, hash_to_curve, message, domain, augmentation=None):
        """Whether this signs the message under the key: e(H(m), key) = e(signature, generator)."""
        assert hash_to_curve, "only hashing to the curve is supported, not encoding"
        hashed = hash_to_G1((augmentation or b"") + message, domain, hashlib.sha256)
        left = pairing(public_key.point, hashed, final_exponentiate=False)
        right = pairing(neg(G2), self.point, final_exponentiate=False)
        return BLST_SUCCESS if final_exponentiate(left * right) == FQ12.one() else BLST_VERIFY_FAIL


class P2_Affine:
    """A public key: 96 bytes, compressed."""

    def __init__(self, compressed):
        high = int.from_bytes(compressed[:48], "big")
        low = int.from_bytes(compressed[48:], "big")
        self.point = _checked(decompress_G2((high, low)))


class Pairing:
    """The client's second attempt after a failed `core_verify`; it cannot succeed where that failed."""

    def __init__(self, hash_to_curve, domain):
        pass

    def aggregate(self, public_key, signature, message, augmentation):
        pass

    def finalverify(self):
        return False
