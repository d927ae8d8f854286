"""The sum is exact whoever is lost and whenever, or an error says that too many were."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography")

from secure_sums import NEVER, SESSION, Sum, cohort, total

from fedbraid.deploy.secagg.fixed_point import FixedPoint
from fedbraid.deploy.secagg.participant import Participant
from fedbraid.deploy.secagg.protocol import LEAST, Session, TooFewParticipants, least_threshold

EXTREMES = st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])


def of_everybody(clients, length=5):
    return cohort(clients, lambda k: np.random.default_rng(k).integers(0, 2**64, length, dtype=np.uint64))


@pytest.mark.parametrize("clients", [3, 4, 7, 20])
def test_the_sum_of_everybody(clients):
    numbers = of_everybody(clients, 1000)
    assert Sum(numbers).run().tolist() == total(numbers, numbers).tolist()


@given(st.lists(st.sampled_from([0, 1, 2, 3, *[NEVER] * 6]), min_size=3, max_size=9), st.data())
def test_whoever_is_lost_and_whenever(lost, data):
    """Each client is lost before one of the steps, or never: the sum is over those whose numbers came, to the last bit,
    or the error says at which step too many were missing."""
    length = data.draw(st.integers(1, 4))
    element = st.one_of(EXTREMES, st.integers(0, 2**64 - 1))
    numbers = cohort(len(lost), lambda k: data.draw(st.lists(element, min_size=length, max_size=length)))
    here = [[name for name, at in zip(numbers, lost, strict=True) if at > step] for step in range(4)]
    needed = max(LEAST, least_threshold(len(here[0])))
    game, when = Sum(numbers), dict(zip(numbers, lost, strict=True))
    too_few = [
        (len(here[0]) < LEAST, "take part"),
        (len(here[1]) < needed, "sent shares"),
        (len(here[2]) < needed, "sent their numbers"),
        (len(here[3]) < least_threshold(len(here[0])), "revealed"),
    ]
    expected = next((words for failed, words in too_few if failed), None)
    if expected:
        with pytest.raises(TooFewParticipants, match=expected):
            game.run(when)
    else:
        assert game.run(when).tolist() == total(numbers, here[2]).tolist()


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("clients", [4, 5, 8, 11])
def test_down_to_the_threshold_and_not_below(clients, step):
    numbers, enough = of_everybody(clients), least_threshold(clients)
    names = list(numbers)
    left = names[-enough:]  # the first in the roster are lost
    lost = {name: step for name in names if name not in left}
    assert Sum(numbers).run(lost).tolist() == total(numbers, names if step == 3 else left).tolist()
    with pytest.raises(TooFewParticipants, match=rf"\b{enough - 1} of {clients} .*\b{enough}\b"):
        Sum(numbers).run(lost | {left[0]: step})


def test_clients_lost_at_every_step_of_one_sum():
    numbers = of_everybody(12)
    lost = {"client-0": 0, "client-4": 0, "client-1": 1, "client-7": 2, "client-2": 3}
    left = [name for name in numbers if lost.get(name, NEVER) > 2]
    assert Sum(numbers).run(lost).tolist() == total(numbers, left).tolist()


def test_a_threshold_is_more_than_two_thirds():
    """To open both secrets of a client, honest ones are split in two groups; a third of all must help both."""
    assert [least_threshold(n) for n in range(3, 11)] == [3, 3, 4, 5, 5, 6, 7, 7]
    for n in range(3, 60):
        t = least_threshold(n)
        colluders = next(c for c in range(n + 1) if 2 * t <= n + c)
        assert colluders > n / 3


def test_the_threshold_may_be_higher_than_half():
    numbers = of_everybody(5)
    assert Sum(numbers, threshold=5).run().tolist() == total(numbers, numbers).tolist()
    with pytest.raises(TooFewParticipants, match="4 of 5 clients revealed shares, and 5 must"):
        Sum(numbers, threshold=5).run({"client-2": 3})
    with pytest.raises(TooFewParticipants, match="4 clients take part, and a secure sum of them needs 5"):
        Sum(numbers, threshold=5).run({"client-2": 0})


@pytest.mark.parametrize("clients", [1, 2])
def test_fewer_than_three_hide_nobody(clients):
    with pytest.raises(TooFewParticipants, match=f"{clients} clients take part, and a secure sum of them needs 3"):
        Sum(of_everybody(clients)).run()


def test_a_sum_of_two_of_three_is_not_told():
    """Each of the two would know the other's numbers."""
    with pytest.raises(TooFewParticipants, match="2 of 3 clients sent their numbers, and a secure sum of them needs 3"):
        Sum(of_everybody(3)).run({"client-0": 2})


def test_a_failed_attempt_is_repeated_with_those_who_are_left():
    numbers = of_everybody(4)
    with pytest.raises(TooFewParticipants):
        Sum(numbers).run({"client-0": 2, "client-1": 2})
    rest = {name: numbers[name] for name in list(numbers)[:3]}
    again = Session(SESSION.run, SESSION.round, SESSION.what, 1)
    assert Sum(rest, again).run().tolist() == total(rest, rest).tolist()


def test_weighted_models_and_whole_counts_in_one_vector():
    """As an engine sends them: a model times its weight, and label counts, each with its own bound."""
    rng = np.random.default_rng(1)
    models, counts = rng.normal(size=(5, 300)).astype(np.float32), rng.integers(0, 10**6, (5, 10))
    weights = rng.dirichlet(np.ones(5))
    model, whole = FixedPoint(100.0, 5), FixedPoint(2.0**30, 5)
    numbers = cohort(5, lambda k: np.concatenate([model.encode(models[k], weights[k]), whole.encode(counts[k])]))
    found = Sum(numbers).run({"client-3": 3})
    exact = [math.fsum(w * float(v) for w, v in zip(weights, column, strict=True)) for column in models.T]
    assert np.abs(model.decode(found[:300]) - exact).max() <= model.error + 1e-15
    assert whole.decode(found[300:]).tolist() == counts.sum(0).tolist()


def test_clients_make_their_own_randomness():
    one, other = Participant(SESSION, "a"), Participant(SESSION, "a")
    assert one.root != other.root and one.advert() != other.advert() and len(one.root) == 32
    assert one.root.hex() not in repr(one)


def test_a_client_is_put_away_whole():
    game = Sum(of_everybody(4))
    assert game.run({"client-1": 2}) is not None
    for client in game.clients.values():
        json.loads(client.state())
        assert Participant.restored(client.state()) == client
    assert len(game.clients["client-0"].survivors) == 3


def test_the_same_letter_again_has_the_same_answer():
    """A message may come twice; nothing new is told."""
    game = Sum(of_everybody(4))
    game.introduce()
    a = game.clients["client-0"]
    assert a.share(game.roster) == a.share(game.roster)
    game.share()
    a, numbers = game.clients["client-0"], game.numbers["client-0"]
    delivered = game.delivered["client-0"]
    assert a.mask(delivered, numbers).tolist() == a.mask(delivered, numbers.copy()).tolist()
    game.mask()
    a = game.clients["client-0"]
    assert a.reveal(game.payload) == a.reveal(game.payload)
    assert game.reveal().tolist() == total(game.numbers, game.numbers).tolist()


def test_what_was_masked_is_left_as_it_was():
    game = Sum(of_everybody(3))
    before = {name: vector.copy() for name, vector in game.numbers.items()}
    game.run()
    assert all(np.array_equal(before[name], game.numbers[name]) for name in before)
