"""Shamir's sharing: a secret in parts of which so many give it back and fewer tell nothing.

The secret is the value at 0 of a random polynomial over a prime field; holder i has its value at i.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedbraid.deploy.secagg.masks import keystream
from fedbraid.deploy.secagg.protocol import ProtocolError

PRIME = 2**521 - 1
"""A Mersenne prime: 521 random bits are a random element of its field."""

SHARE = 66
"""Bytes of a share."""

SECRET = 32
"""Bytes of a secret."""


def split(secret: bytes, threshold: int, holders: int, seed: bytes) -> list[bytes]:
    """Shares for holders 1, 2, …; the polynomial is drawn from `seed`."""
    drawn = keystream(seed).update(bytes(SHARE * (threshold - 1)))
    rest = (int.from_bytes(drawn[i : i + SHARE], "little") & PRIME for i in range(0, len(drawn), SHARE))
    coefficients = [int.from_bytes(secret, "little"), *rest]
    return [_value(coefficients, x).to_bytes(SHARE, "little") for x in range(1, holders + 1)]


def interpolation(holders: Sequence[int], at: int = 0) -> list[int]:
    """Return what each of these holders' shares counts: Lagrange's weights for the polynomial's value at `at`.

    The value at 0 is the secret; the value at another holder's number is that holder's share.
    """
    weights = []
    for i in holders:
        above = below = 1
        for j in holders:
            if j != i:
                above, below = above * (j - at) % PRIME, below * (j - i) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def join(shares: Sequence[bytes], weights: Sequence[int]) -> bytes:
    """The secret, from the shares of those holders for whom `weights` were made."""
    values = (int.from_bytes(share, "little") for share in shares)
    secret = sum(weight * value for weight, value in zip(weights, values, strict=True)) % PRIME
    try:
        return secret.to_bytes(SECRET, "little")
    except OverflowError:
        raise ProtocolError("shares of a secret do not belong together") from None


def value(shares: Sequence[bytes], weights: Sequence[int]) -> bytes:
    """Return the share of the holder for whom `weights` were made, from the shares of others."""
    total = sum(w * int.from_bytes(share, "little") for share, w in zip(shares, weights, strict=True)) % PRIME
    return total.to_bytes(SHARE, "little")


def _value(coefficients: Sequence[int], x: int) -> int:
    total = 0
    for coefficient in reversed(coefficients):
        total = (total * x + coefficient) % PRIME
    return total
