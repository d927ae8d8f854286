"""Masks: the stream of numbers modulo 2⁶⁴ that a seed stands for, and where seeds come from."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedbraid.deploy.secagg.fixed_point import Numbers
from fedbraid.deploy.secagg.key_agreement import agreed, derived
from fedbraid.deploy.secagg.protocol import KeyRoster

PIECE = 1 << 16
"""Numbers at a time: half a MiB, which stays in the processor's cache."""


def keystream(seed: bytes) -> CipherContext:
    """ChaCha20; a seed is for one stream, so the nonce may be 0. Zeros go in, the stream comes out."""
    return Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()


def add_mask(numbers: Numbers, seed: bytes, sign: int = 1) -> None:
    """Add the mask of `seed` in place, or take it away (sign −1)."""
    stream, zeros = keystream(seed), memoryview(bytes(8 * PIECE))
    combine = np.add if sign > 0 else np.subtract
    for begin in range(0, len(numbers), PIECE):
        piece = numbers[begin : begin + PIECE]
        combine(piece, np.frombuffer(stream.update(zeros[: piece.nbytes]), dtype="<u8"), out=piece)


def own_mask(secret: bytes) -> bytes:
    """The seed of the mask that a client shares with nobody."""
    return derived(secret, "own mask")


def promise(secret: bytes) -> bytes:
    """A digest by which the secret of a client's own mask is known again, and which tells nothing of it."""
    return derived(secret, "promise")


def pair_mask(roster: KeyRoster, mine: str, private: bytes, other: str, terms: bytes = b"") -> tuple[bytes, int]:
    """Return the seed of the mask that two clients share, and whether `mine` adds it (1) or takes it away (−1).

    `terms` is a digest of what is summed and with which weights: only clients that were told the same share a mask.
    """
    first, second = sorted((mine, other), key=roster.positions.__getitem__)
    seed = agreed(private, roster.adverts[other].pairs, "pair mask", roster.digest, terms, first, second)
    return seed, 1 if mine == first else -1
