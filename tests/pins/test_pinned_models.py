"""Three rounds of every method end with the weights that version 0.1 ended with, on every engine of the CPU.

To the bit on the kind of machine that they were recorded on, and else to a tolerance: other processors and versions of
torch add up in another order. On a cluster a worker chooses its engine by trials, so that there it is the tolerance.
"""

import itertools

import matrix
import numpy as np
import pytest
from matrix import CASES, TOLERANCE, behaviour, pinned
from ray_here import NOISE, own_place

HERE = matrix.machine()
SAME_MACHINE = behaviour()["machine"] == HERE
SAME_BUT_FOR_COMPILER = {**behaviour()["machine"], "compiler": ""} == {**HERE, "compiler": ""}
QUICK = {
    "compiled": {"mlp float32 fedavg", "mlp float64 scaffold+disco"},
    "stack": {f"mlp float64 {method}" for method in matrix.COMBINED[::2]} | {"conv float64 feddyn+asd"},
    "loop": {name for name, case in CASES.items() if case.dtype == "float64"} | {"mlp float32 feddyn+asd"},
}
"""Cases that are run by default, by engine; the engines are compared with each other elsewhere, too."""


def runs():
    """All cases on each engine that trains them."""
    return [
        pytest.param(name, engine, marks=[] if name in QUICK[engine] else pytest.mark.slow, id=f"{name} {engine}")
        for name, case in CASES.items()
        for engine in case.engines
    ]


def agree(got, due, exactly, within):
    assert got.shape == due.shape and got.dtype == due.dtype
    if exactly:
        assert got.tobytes() == due.tobytes(), f"differs by up to {np.abs(got - due).max()}"
    else:
        np.testing.assert_allclose(got, due, rtol=0, atol=within)


@pytest.mark.parametrize(("name", "engine"), runs())
def test_weights(name, engine, tmp_path):
    case = CASES[name]
    out = tmp_path / "run" if engine == "loop" and case.dtype == "float64" else None
    with matrix.quiet():
        run = case.run(engine, out)
    exactly = SAME_MACHINE if engine == "compiled" else SAME_BUT_FOR_COMPILER
    agree(matrix.weights(run), pinned(case, engine), exactly, TOLERANCE[case.dtype])
    if case.dtype == "float64":
        agree_on_rounds(matrix.log(run), behaviour()["logs"][name], exactly and engine == "loop", TOLERANCE[case.dtype])
    if out and exactly:
        assert matrix.state(out) == behaviour()["states"][name], "the server's or a client's state is another"


def agree_on_rounds(got, due, exactly, within):
    """Lines of the log have the keys and the values of those that were recorded; they may have further keys."""
    for now, then in zip(got, due, strict=True):
        assert now.keys() >= then.keys()
        for key, value in then.items():
            if exactly or not isinstance(value, float):
                assert now[key] == value or key in ("accuracy", "per_class", "client_accuracy"), key
            else:
                assert now[key] == pytest.approx(value, abs=max(1e-6, 10 * within)), key


def test_engines_agree_on_what_is_pinned():
    for name, case in CASES.items():
        engines = behaviour()["models"][name].keys()
        for one, other in itertools.combinations(engines, 2):
            agree(pinned(case, one), pinned(case, other), False, TOLERANCE[case.dtype])


def test_methods_are_pinned_apart():
    """No two of these runs end alike, but for those that say the same in other words."""
    for dtype in TOLERANCE:
        ends = {}
        for case in CASES.values():
            if case.network == "mlp" and case.dtype == dtype and not case.setting:
                ends.setdefault(pinned(case, "loop").tobytes(), []).append(case.method)
        alike = sorted(sorted(group) for group in ends.values() if len(group) > 1)
        assert alike == behaviour()["alike"]


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install fedbraid[ray]")
    with own_place(ray.shutdown):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("network", matrix.ON_A_CLUSTER)
@pytest.mark.filterwarnings(*NOISE)
def test_weights_on_a_cluster(network, cluster):
    with matrix.quiet():
        ends = matrix.on_a_cluster(network)
    for name, got in ends.items():
        agree(got, pinned(CASES[name], "ray"), False, TOLERANCE[CASES[name].dtype])
