"""What one client can do to the model: by its numbers, or by what it says of itself."""

import pytest
import torch
from world import apart, by_message, configured, finite, happening, held_apart, nodes, rewritten, samples

from fedbraid.core.update_checks import outliers, reason_against
from fedbraid.deploy.messages import read
from fedbraid.deploy.transport import InProcess
from fedbraid.deploy.update_limits import UpdateLimits
from fedbraid.errors import UserError

WHO, NUMBER = "clinic-c", 2


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def everybody(method, file, **settings):
    return configured(method, file, sampling={"clients": 0}, rounds=2, **settings)


def advanced(config, place, change, limits=None):
    """A federation after two rounds, in the first of which one client's answer was changed."""

    def changed(question, answer):
        return rewritten(answer, tensors=change(question.tensors, read(answer, 1 << 30).tensors))

    transport = happening(config, place / "homes", {(WHO, 0, "train"): changed})
    federation = by_message(config, place, transport, min_clients=3, limits=limits)
    lines = [federation.advance(), federation.advance()]
    return federation, lines


def scaled(factor):
    return lambda sent, tensors: tensors | {"model": sent["model"] + factor * (tensors["model"] - sent["model"])}


def without(config, place):
    """The same federation where the client does not answer in the first round."""
    transport = happening(config, place / "homes", {(WHO, 0, "train"): lambda question, answer: None})
    federation = by_message(config, place, transport, min_clients=3)
    federation.advance(), federation.advance()
    return federation


@pytest.mark.parametrize(
    "method, change, reason",
    [
        ("fedavg", lambda sent, t: t | {"model": t["model"] * 1e300}, "its update is too large to compute with"),
        ("fedavg", lambda sent, t: t | {"model": t["model"] * float("nan")}, "numbers that are not finite"),
        ("disco", lambda sent, t: t | {"disco.d": t["disco.d"] * 0 - 1e9}, "its 'disco.d' is -1e+09, and is between"),
        ("disco(metric=l1)", lambda sent, t: t | {"disco.d": t["disco.d"] * 0 + 1e9}, "its 'disco.d' is 1e+09, and is"),
        ("fednova", lambda sent, t: t | {"nova.a": -t["nova.a"]}, "its 'nova.a' is"),
        ("qfair", lambda sent, t: t | {"qfair.loss": -t["qfair.loss"]}, "its 'qfair.loss' is"),
        ("dp(noise=0, clip=0.1)", scaled(3.0), "and is clipped to 0.1"),
    ],
)
def test_what_no_honest_client_sends_is_refused_in_its_round(method, change, reason, file, tmp_path):
    config = everybody(method, file)
    federation, lines = advanced(config, tmp_path / "with", change)
    assert reason in lines[0]["missing"][WHO] and lines[1]["missing"] == {}
    reference = without(config, tmp_path / "without")
    held = held_apart(federation, tmp_path / "with" / "homes")
    assert finite(held) and apart(held, held_apart(reference, tmp_path / "without" / "homes")) == 0


def test_an_update_that_sticks_out_is_told_of_and_counts(file, tmp_path, caplog):
    _, lines = advanced(everybody("fedavg", file), tmp_path, scaled(1000.0))
    assert lines[0]["missing"] == {}
    assert f"round 1: {WHO}: its update is" in caplog.text and "it counts as it is" in caplog.text


def test_an_update_that_sticks_out_is_dropped_if_the_operator_says_so(file, tmp_path):
    config = everybody("fedavg", file)
    federation, lines = advanced(config, tmp_path / "with", scaled(-1000.0), UpdateLimits(on_outlier="drop"))
    assert "times as long as the median of the round" in lines[0]["missing"][WHO]
    held = [
        held_apart(one, tmp_path / place / "homes")
        for one, place in ((federation, "with"), (without(config, tmp_path / "without"), "without"))
    ]
    assert apart(*held) == 0


def test_an_update_that_sticks_out_is_cut(file, tmp_path, caplog):
    limits, config = UpdateLimits(on_outlier="clip", outlier_factor=3.0), everybody("fedavg", file)
    far = [advanced(config, tmp_path / str(f), scaled(f), limits)[0].server.w for f in (1e4, 1e6)]
    assert torch.allclose(*far) and "it is shortened" in caplog.text
    near = advanced(config, tmp_path / "near", scaled(1.0))[0].server.w
    assert float((far[0] - near).norm()) < 5 * float(near.norm())


@pytest.mark.parametrize("key", ["samples", "tests"])
def test_sizes_have_a_ceiling(key, file, tmp_path):
    config, transport = everybody("fedavg", file), None

    def on_reply(client, message, answer):
        found = read(answer, 1 << 30)
        return (
            rewritten(answer, payload=found.payload | {key: 10**12})
            if (client, key in found.payload) == (WHO, True)
            else answer
        )

    transport = InProcess(nodes(config, tmp_path / "homes"), on_reply=on_reply)
    federation = by_message(config, tmp_path, transport, min_clients=3)
    line = federation.advance()
    assert (
        line["missing"][WHO] == "it says that it has 1,000,000,000,000 samples, and at most 1,000,000,000 are believed"
    )


def test_one_clients_share_has_a_ceiling(file, tmp_path):
    config = everybody("fedavg", file)
    by_message(config, tmp_path / "a", limits=UpdateLimits(max_share=0.4))
    with pytest.raises(UserError, match=f"{WHO} says that it has 38% of all training samples, and max_share is 30%"):
        by_message(config, tmp_path / "b", limits=UpdateLimits(max_share=0.3))


def test_settings_that_make_no_sense():
    for wrong in (
        {"max_samples": 0},
        {"max_share": 0.0},
        {"max_share": 1.5},
        {"outlier_factor": 1.0},
        {"on_outlier": "x"},
    ):
        with pytest.raises(UserError):
            UpdateLimits(**wrong)


def test_of_two_updates_none_is_the_odd_one():
    assert outliers([1.0, 1e9], 10) == [] and outliers([0.0, 0.0, 5.0], 10) == []
    assert outliers([1.0, 2.0, 30.0], 10) == [(2, 15.0)]
    assert outliers([1.0, 1.0, 50.0, 50.0], 10) == [(2, 50.0), (3, 50.0)]


def test_ranges():
    uploads = {"a": torch.tensor([0.0, 3.0]), "n": torch.tensor([7])}
    assert reason_against(uploads, {"a": (0.0, 3.0), "n": (0, 9)}) == ""
    assert reason_against(uploads, {"a": (0.0, 2.0)}) == "its 'a' is 3, and is between 0 and 2 for every client"
