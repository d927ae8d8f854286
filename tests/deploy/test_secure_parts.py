"""What a secure sum is made of: fixed-point numbers, shares of secrets, keys."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from fedbraid.deploy.secagg.fixed_point import FixedPoint
from fedbraid.deploy.secagg.key_agreement import agreed, derived, opened, public, sealed, signer, verifier
from fedbraid.deploy.secagg.masks import PIECE, add_mask
from fedbraid.deploy.secagg.protocol import ProtocolError, framed
from fedbraid.deploy.secagg.shamir import PRIME, SHARE, interpolation, join, split

# --- numbers


def summed(numbers, values, weights=None):
    weights = weights or [1.0] * len(values)
    total = np.zeros(np.asarray(values[0]).size, np.uint64)
    for value, weight in zip(values, weights, strict=True):
        total += numbers.encode(value, weight)
    return numbers.decode(total)


@given(st.integers(1, 10**6), st.floats(1e-9, 1e12), st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_a_sum_is_as_near_as_promised(clients, bound, parts):
    """Against exact fractions, for cohorts of any announced size and values up to the bound."""
    numbers = FixedPoint(bound, max(clients, len(parts)))
    values = [part * bound for part in parts]
    (found,) = summed(numbers, values)
    exact = sum(map(Fraction, values))
    assert abs(Fraction(found) - exact) <= Fraction(numbers.error) + abs(exact) * Fraction(2) ** -53
    assert numbers.error <= numbers.clients**2 * bound / 2**62


@pytest.mark.parametrize("clients", [1, 3, 7, 1000])
@pytest.mark.parametrize("bound", [1e-6, 0.3, 1.0, 1000.0, 2.0**20])
def test_not_even_everybody_at_the_bound_wraps(clients, bound):
    numbers = FixedPoint(bound, clients)
    for sign in (1, -1):
        at_most = summed(numbers, [sign * bound] * clients)
        assert abs(at_most[0] - sign * clients * bound) <= numbers.error + clients * bound * 2**-53
    assert numbers.clients * (numbers.bound * numbers.scale + 0.5) < 2**63  # whole numbers with a sign
    assert 2 * numbers.clients * numbers.bound * numbers.scale > 2**62  # and no scale is twice as fine


@pytest.mark.parametrize("part", [0.4, -0.4, 0.6, -0.6, 0.9])
def test_steps_are_rounded_to_the_nearest(part):
    """Every client errs by the same part of a step and in the same direction."""
    numbers = FixedPoint(1000.0, 4)
    (found,) = summed(numbers, [part / numbers.scale] * 4)
    assert abs(found - 4 * part / numbers.scale) <= numbers.error == 2 / numbers.scale


def test_float32_models_sum_to_1e7_of_the_bound():
    """What the issue is about: models of ten clients, weighted, against float64."""
    rng = np.random.default_rng(0)
    models = rng.normal(size=(10, 5000)).astype(np.float32)
    weights = rng.dirichlet(np.ones(10))
    numbers = FixedPoint(8.0, 10)
    found = summed(numbers, list(models), weights.tolist())
    exact = [math.fsum(w * float(v) for w, v in zip(weights, column, strict=True)) for column in models.T]
    assert np.abs(found - exact).max() < 1e-15 * 8
    assert numbers.error < 1e-7 * 8


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_whole_counts_are_exact(counts):
    numbers = FixedPoint(2.0**40, 1000)
    assert summed(numbers, [float(n) for n in counts])[0] == sum(counts)


@pytest.mark.parametrize("wrong", [1.0001, -1.0001, 1e300, math.inf, -math.inf, math.nan])
def test_a_value_beyond_the_bound_is_refused_and_not_wrong(wrong):
    with pytest.raises(ProtocolError, match="beyond the bound of 1 "):
        FixedPoint(1.0, 3).encode([0.5, wrong])
    assert len(FixedPoint(1.0, 3).encode([])) == 0
    assert len(FixedPoint(1.0, 3).encode([[1.0, -1.0], [0.0, 0.5]])) == 4


def test_the_bound_is_on_what_is_weighted():
    FixedPoint(1.0, 3).encode([4.0], 0.25)
    with pytest.raises(ProtocolError, match="a value of 2 is"):
        FixedPoint(1.0, 3).encode([0.5], 4.0)


@pytest.mark.parametrize(("bound", "clients"), [(0.0, 3), (-1.0, 3), (math.inf, 3), (math.nan, 3), (1.0, 0)])
def test_numbers_without_a_bound_are_none(bound, clients):
    with pytest.raises(ValueError):
        FixedPoint(bound, clients)


# --- shares


@given(st.binary(min_size=32, max_size=32), st.data())
def test_any_threshold_of_shares_gives_the_secret_back(secret, data):
    holders = data.draw(st.integers(1, 12))
    threshold = data.draw(st.integers(1, holders))
    shares = split(secret, threshold, holders, bytes(32))
    some = data.draw(st.permutations(range(1, holders + 1)))[:threshold]
    assert join([shares[i - 1] for i in some], interpolation(some)) == secret


def test_one_share_too_few_fits_any_secret():
    """UserObjects t − 1 shares there is, for every other secret, one t-th share that gives it: they tell nothing."""
    secret, other = bytes(range(32)), bytes(range(1, 33))
    shares = split(secret, 3, 5, b"s" * 32)
    weights = interpolation([1, 2, 3])
    known = sum(w * int.from_bytes(s, "little") for w, s in zip(weights, shares[:2], strict=False))
    third = (int.from_bytes(other, "little") - known) * pow(weights[2], -1, PRIME) % PRIME
    assert join([shares[0], shares[1], third.to_bytes(SHARE, "little")], weights) == other


def test_shares_differ_from_seed_to_seed_and_are_the_same_for_the_same():
    one, again, other = (split(bytes(32), 3, 4, seed) for seed in (b"a" * 32, b"a" * 32, b"b" * 32))
    assert one == again and not set(one) & set(other)
    assert len(set(one)) == 4 and all(len(share) == SHARE for share in one)


def test_shares_that_do_not_belong_together_are_refused():
    one, other = split(bytes(32), 2, 3, b"a" * 32), split(bytes(32), 2, 3, b"b" * 32)
    with pytest.raises(ProtocolError, match="do not belong together"):
        join([one[0], other[1]], interpolation([1, 2]))


def test_the_fields_size_is_a_prime():
    """Lucas and Lehmer's test of 2^p − 1, p = 521."""
    s = 4
    for _ in range(521 - 2):
        s = (s * s - 2) % PRIME
    assert s == 0 and PRIME == 2**521 - 1


# --- keys


def test_two_agree_on_a_key_and_others_on_another():
    a, b, c = (derived(bytes(32), name) for name in "abc")
    assert agreed(a, public(b), "x") == agreed(b, public(a), "x")
    assert len({agreed(a, public(b), "x"), agreed(a, public(b), "y"), agreed(a, public(c), "x")}) == 3


def test_a_key_without_a_secret_is_refused():
    with pytest.raises(ProtocolError, match="no secret can be agreed"):
        agreed(bytes(range(32)), bytes(32))


def test_parts_do_not_run_together():
    assert framed("ab", "c") != framed("a", "bc") != framed("abc")
    assert derived(bytes(32), "ab", "c") != derived(bytes(32), "a", "bc")


def test_only_the_key_and_what_it_is_about_open_a_letter():
    message = sealed(b"k" * 32, b"two shares", b"from a to b")
    assert opened(b"k" * 32, message, b"from a to b") == b"two shares"
    altered = bytes([message[0] ^ 1]) + message[1:]
    for key, sent, about in (
        (b"l" * 32, message, b"from a to b"),
        (b"k" * 32, message, b"from a to c"),
        (b"k" * 32, altered, b"from a to b"),
        (b"k" * 32, message[:-1], b"from a to b"),
        (b"k" * 32, b"", b"from a to b"),
    ):
        with pytest.raises(ProtocolError, match="altered"):
            opened(key, sent, about)


def test_signatures_are_by_the_client_that_is_named():
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = {name: (name * 32).encode() for name in "ab"}
    publics = {
        name: Ed25519PrivateKey.from_private_bytes(raw).public_key().public_bytes_raw() for name, raw in private.items()
    }
    verify, signature = verifier(publics), signer(private["a"])(b"message")
    assert verify("a", b"message", signature)
    assert not verify("b", b"message", signature)
    assert not verify("c", b"message", signature)
    assert not verify("a", b"other", signature)
    assert not verify("a", b"message", b"")


# --- masks


@pytest.mark.parametrize("length", [0, 1, 7, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3])
def test_a_mask_is_the_ciphers_stream_and_comes_off_again(length):
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(b"s" * 32, bytes(16)), mode=None).encryptor().update(bytes(8 * length))
    numbers = np.arange(length, dtype=np.uint64) << np.uint64(40)
    masked = numbers.copy()
    add_mask(masked, b"s" * 32)
    assert masked.tolist() == (numbers + np.frombuffer(stream, "<u8")).tolist()
    add_mask(masked, b"s" * 32, -1)
    assert masked.tolist() == numbers.tolist()
