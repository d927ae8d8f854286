"""Cohorts of released code: from its generator and seed, or from a list."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers import federation, toy

from fedbraid.core.sampling import feddyn_cohort, numpy_cohorts, python_cohorts
from fedbraid.errors import UserError

FIRST = [24, 48, 26, 2, 16, 32, 31, 25, 19, 30]
"""The first cohort of FedDisco's Tables 3 and 10: ten of fifty clients, seed 0."""
MOST_UNBIASED = {20: 5, 24: 4, 27: 4}
"""The rounds below 28 in which four or more of its ten unbiased clients, 40 to 49, take part."""


def test_feddiscos_cohorts_are_drawn_by_python():
    cohorts = python_cohorts(50, 10, seed=0, rounds=100)
    assert cohorts[0].tolist() == sorted(FIRST)
    assert {k: int((c >= 40).sum()) for k, c in enumerate(cohorts[:28]) if (c >= 40).sum() >= 4} == MOST_UNBIASED


def test_feddiscos_cohorts_are_those_that_were_listed():
    folder = os.environ.get("FEDBRAID_DRAWS")
    if not folder:
        pytest.skip("needs FEDBRAID_DRAWS, a folder with the authors' draws")
    lines = (Path(folder) / "feddisco-cohorts-50-seed0.txt").read_text().splitlines()
    assert [sorted(map(int, line.split())) for line in lines] == [
        cohort.tolist() for cohort in python_cohorts(50, 10, seed=0, rounds=len(lines))
    ]


def test_numpys_cohorts_are_those_of_its_global_generator():
    np.random.seed(3)
    expected = [sorted(np.random.choice(20, 5, replace=False)) for _ in range(4)]
    assert [cohort.tolist() for cohort in numpy_cohorts(20, 5, seed=3, rounds=4)] == expected


def test_feddyn_seeds_every_round_anew_and_goes_on_until_somebody_comes():
    np.random.seed(7 + 2)
    expected = np.flatnonzero(np.random.uniform(size=100) <= 0.1)
    assert np.array_equal(feddyn_cohort(100, 0.1, seed=7, round=2), expected)
    found = [feddyn_cohort(3, 0.02, seed=0, round=k) for k in range(20)]
    assert all(len(cohort) for cohort in found)
    following = next(s for s in range(100) if (np.random.RandomState(s).uniform(size=3) <= 0.02).any())
    assert np.array_equal(found[0], np.flatnonzero(np.random.RandomState(following).uniform(size=3) <= 0.02))


def cohorts(tmp_path, rounds=3, **sampling):
    made = federation("fedavg", data=toy([5] * 6), rounds=rounds, sampling=sampling)
    return [made.cohort(k).ids.tolist() for k in range(rounds)]


def test_a_run_takes_the_cohorts_of_the_seed_it_names(tmp_path):
    found = cohorts(tmp_path, scheme="fixed", clients=2, draws="python", draws_seed=5)
    assert found == [c.tolist() for c in python_cohorts(6, 2, seed=5, rounds=3)]
    found = cohorts(tmp_path, scheme="bernoulli", rate=0.5, draws="feddyn", draws_seed=5)
    assert found == [feddyn_cohort(6, 0.5, seed=5, round=k).tolist() for k in range(3)]


def test_a_run_takes_the_cohorts_of_a_file(tmp_path):
    file = tmp_path / "cohorts.txt"
    file.write_text("5 0\n\n1, 2\n3 4\n0 1\n")
    assert cohorts(tmp_path, scheme="listed", clients=2, file=str(file)) == [[0, 5], [1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("lines", "refusal"),
    [
        ("0 1\n2 3\n", "2 rounds, and the run has 3"),
        ("0 1\n2 3\n4 6\n", "line 3 lists client 6; the clients are 0 to 5"),
        ("0 1\n2 2\n4 5\n", "line 2 lists 1 different clients; sampling.clients is 2"),
        ("0 1\n2 x\n4 5\n", "line 2 must be numbers"),
    ],
)
def test_a_list_that_fits_no_run_is_refused(tmp_path, lines, refusal):
    file = tmp_path / "cohorts.txt"
    file.write_text(lines)
    with pytest.raises(UserError, match=refusal):
        cohorts(tmp_path, scheme="listed", clients=2, file=str(file))


@pytest.mark.parametrize(
    ("sampling", "refusal"),
    [
        ({"scheme": "listed", "clients": 2}, "sampling.file"),
        ({"scheme": "listed", "file": "a.txt"}, "sampling.clients"),
        ({"scheme": "listed", "clients": 2, "file": "nowhere.txt"}, "cannot be read"),
        ({"scheme": "bernoulli", "draws": "python"}, "for sampling.scheme=fixed"),
        ({"scheme": "fixed", "draws": "feddyn"}, "for sampling.scheme=bernoulli"),
        ({"scheme": "fixed", "clients": 2, "draws": "numpy", "late": 0.5}, "late=0"),
    ],
)
def test_schemes_that_contradict_themselves_are_refused(tmp_path, sampling, refusal):
    with pytest.raises(UserError, match=refusal):
        cohorts(tmp_path, **sampling)
