"""By messages or on one machine: every method ends in the same place, on the server and on every client."""

import pytest
from cheap_strands import HYPER
from cheap_strands import NAMES as STRANDS
from covering import BRAIDS, rest_slow
from world import apart, by_message, configured, finite, held_apart, held_here, here, pictures, samples

from fedbraid.strands import METHODS

CHAINS = [
    "feddyn+asd(lam=1)+disco+prox+sam+mixup+decorr+moon+rfedavg_plus+lc",
    "scaffold(by_size=True)+skip(every=2)",
    "drift(by_size=True)+avgm",
    "nh+rfedavg+skip(every=2)",
    "fedacd+rfedavg_plus+scaffold+nova",
    "disco(target=cohort)+rfedavg",
    "rfedavg_plus+moon",
]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


EXACT = (
    *("round", "clients", "lost", "client_ids", "lost_ids", "lr"),
    *("bytes_down", "bytes_up", "forward_samples", "backward_samples"),
)
"""Keys of the log that are the same to the bit."""


def same(config, place, within=1e-10):
    local, apart_ = here(config), by_message(config, place)
    for _ in range(config.rounds):
        one, other = local.advance(), apart_.advance()
        for key in EXACT:
            assert one[key] == other[key], key
        assert one["train_loss"] == pytest.approx(other["train_loss"], abs=1e-6 if within > 1e-9 else 1e-12)
        assert one["accuracy"] == other["accuracy"] and one["per_class"] == other["per_class"]
    ours, theirs = held_here(local), held_apart(apart_, place / "homes")
    assert finite(ours) and apart(ours, theirs) <= within
    assert apart({"w": ours["w"]}, {"w": local.setup.w}) > 1e-4  # something was learned


@pytest.mark.slow
@pytest.mark.parametrize("strand", STRANDS)
def test_strand(strand, file, tmp_path):
    same(configured(HYPER.get(strand, strand), file), tmp_path)


@pytest.mark.parametrize(
    "method", [*BRAIDS, *rest_slow([m for m in METHODS if m not in STRANDS], {"fedavg"}.__contains__)]
)
def test_method(method, file, tmp_path):
    same(configured(method, file), tmp_path)


@pytest.mark.parametrize("chain", CHAINS)
def test_chain(chain, file, tmp_path):
    same(configured(chain, file, rounds=4), tmp_path)


def test_noise_that_hides_is_a_clients_own(file, tmp_path):
    """The server knows the run's seed: noise drawn from that alone it could take off again."""

    def ends(strand, place):
        federation = by_message(configured(strand, file), tmp_path / place)
        federation.advance()
        return held_apart(federation, tmp_path / place / "homes")

    noisy = [ends("rfedavg_plus(lam=0.1,noise=1.0)", place) for place in ("a", "b")]
    local = here(configured("rfedavg_plus(lam=0.1,noise=1.0)", file))
    local.advance()
    assert apart(noisy[0], noisy[1]) > 1e-4 and apart(noisy[0], held_here(local)) > 1e-4
    assert apart(*[ends("rfedavg_plus(lam=0.1)", place) for place in ("c", "d")]) == 0.0


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": {"lr": 0.2, "decay": 0.5}},
        {"optimizer": {"name": "adam", "lr": 0.05}, "seed": 5},
        {"schedule": {"shape": "cosine", "warmup": 1}},
        {"local": {"batch": 0, "steps": 4, "least": 1}},
        {"sampling": {"scheme": "bernoulli", "rate": 0.5}},
        {"engine": {"device": "cpu", "dtype": "float64", "kind": "stack"}},
    ],
    ids=["decay", "adam", "schedule", "stragglers", "bernoulli", "stack"],
)
def test_settings(settings, file, tmp_path):
    method = "scaffold+mixup" if settings.get("optimizer", {}).get("name") != "adam" else "ntd+mixup"
    same(configured(method, file, **settings), tmp_path)


def test_single_precision(file, tmp_path):
    engine = {"device": "cpu", "dtype": "float32", "kind": "stack"}
    same(configured("feddyn+rfedavg_plus", file, engine=engine), tmp_path, within=1e-5)


def test_regression(tmp_path):
    """Labels are counted in the same ranges."""
    same(configured("disco(metric=l1)+drift", samples(tmp_path, "regression")), tmp_path)


@pytest.mark.parametrize("batch", [0, 3])
def test_images_that_change(batch, tmp_path):
    """Draws for images are as many as the widest batch of all clients has."""
    settings = {"augment": {"crop": 1, "flip": 0.5, "rotation": 10.0}, "local": {"batch": batch, "epochs": 2}}
    same(configured("fedprox", pictures(tmp_path), **settings), tmp_path)


def test_running_statistics(tmp_path):
    """BatchNorm's travel beside the model."""
    network = {"model": {"name": "resnet20", "norm": "batch"}, "local": {"batch": 0, "steps": 1}, "rounds": 2}
    same(configured("moon", pictures(tmp_path), **network), tmp_path)
