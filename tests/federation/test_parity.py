"""By letters or on one machine: every method ends in the same place, on the server and on every client."""

import pytest
from test_composition import HYPER
from test_composition import NAMES as STRANDS
from world import apart, by_letter, configured, finite, held_apart, held_here, here, samples

from fedbraid.strands import METHODS

CHAINS = [
    "feddyn+asd(lam=1)+disco+prox+sam+mixup+decorr+moon+rfedavg_plus+nova+lc",
    "scaffold(by_size=True)+skip(every=2)",
    "drift(by_size=True)+avgm",
    "nh+rfedavg+skip(every=2)",
    "fedacd+rfedavg_plus+scaffold",
    "disco(target=global)+rfedavg",
    "rfedavg_plus(noise=1.0)+moon",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def same(config, place, within=1e-10):
    local, apart_ = here(config), by_letter(config, place)
    for _ in range(config.rounds):
        one, other = local.advance(), apart_.advance()
        for key in ("round", "clients", "lost", "bytes_down", "bytes_up", "forward_samples", "backward_samples"):
            assert one[key] == other[key], key
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-6 if within > 1e-9 else 1e-12)
        assert one["accuracy"] == other["accuracy"] and one["per_class"] == other["per_class"]
    ours, theirs = held_here(local), held_apart(apart_, place / "homes")
    assert finite(ours) and apart(ours, theirs) <= within
    assert apart({"w": ours["w"]}, {"w": local.setup.w}) > 1e-4  # something was learned


@pytest.mark.parametrize("strand", STRANDS)
def test_strand(strand, file, tmp_path):
    same(configured(HYPER.get(strand, strand), file), tmp_path)


@pytest.mark.parametrize("method", [m for m in METHODS if m not in STRANDS])
def test_method(method, file, tmp_path):
    same(configured(method, file), tmp_path)


@pytest.mark.parametrize("chain", CHAINS)
def test_chain(chain, file, tmp_path):
    same(configured(chain, file, rounds=4), tmp_path)
