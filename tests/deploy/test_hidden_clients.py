"""dp where clients are elsewhere: noise that nobody can draw again, and an account of all that was handed out."""

import json
from itertools import pairwise

import pytest
from world import NAMES, apart, by_message, configured, held_apart, held_here, here, nodes, samples

from fedbraid.deploy.federation_run import conduct
from fedbraid.deploy.remote_federation import RemoteFederation
from fedbraid.deploy.secure_policy import SecurePolicy
from fedbraid.deploy.transport import InProcess
from fedbraid.privacy import budget as privacy

pytestmark = pytest.mark.usefixtures("shared_draws")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return samples(tmp_path_factory.mktemp("data"))


def test_who_knows_the_seed_does_not_know_the_noise(file, tmp_path):
    """Without it the federation ends where a simulation does."""

    def end(method, place):
        federation = by_message(configured(method, file), tmp_path / place)
        federation.advance()
        return held_apart(federation, tmp_path / place / "homes")

    noisy = [end("dp(noise=0.5)", place) for place in ("a", "b")]
    local = here(configured("dp(noise=0.5)", file))
    local.advance()
    assert apart(*noisy) > 1e-4 and apart(noisy[0], held_here(local)) > 1e-4
    assert apart(*[end("dp(noise=0)", place) for place in ("c", "d")]) == 0.0


def test_each_round_has_its_own_noise(file, tmp_path):
    still = {"optimizer": {"lr": 1e-12}}
    federation = by_message(configured("dp(noise=0.5)", file, **still), tmp_path)
    models = [federation.server.w]
    for _ in range(3):
        federation.advance()
        models.append(federation.server.w)
    first, second, third = (b - a for a, b in pairwise(models))
    assert (first - second).abs().max() > 1e-3 and (second - third).abs().max() > 1e-3


class Killed(Exception):
    pass


def test_a_round_that_was_handed_out_and_lost_is_accounted_for(file, tmp_path, monkeypatch):
    """The server dies when the model may have left, and is not saved: the round is gone through again, with new noise.

    Nothing is gained by who was drawn: clients know the seed.
    """
    config = configured("dp(noise=2.0)", file)
    arguments = {"out": tmp_path / "run", "seconds": 1.0, "pause": 0.0}

    def transport():
        return InProcess(nodes(config, tmp_path / "homes"))

    scored = RemoteFederation.scored

    def dying(self):
        if self.server.round == 2:
            raise Killed
        return scored(self)

    with monkeypatch.context() as patch:
        patch.setattr(RemoteFederation, "scored", dying)
        with pytest.raises(Killed):
            conduct(config, transport(), NAMES, **arguments)
    run = conduct(config, transport(), NAMES, resume=True, **arguments)
    assert json.loads((tmp_path / "run" / "federation.json").read_text())["released"] == 4
    told = [line["privacy"]["dp"] for line in run.rounds]
    assert [one["releases"] for one in told] == [1, 3, 4]
    assert run.summary["privacy"]["dp"]["epsilon"] == told[-1]["epsilon"] == privacy.spent(2.0, 4)


def test_clipped_updates_are_summed_securely(file, tmp_path):
    pytest.importorskip("cryptography")
    open_, secure = (
        by_message(configured("dp(noise=0, clip=0.2)", file), tmp_path / place, policy=policy)
        for place, policy in (("open", None), ("secure", SecurePolicy()))
    )
    for federation in (open_, secure):
        federation.advance()
    assert (open_.server.w - secure.server.w).abs().max() < 1e-10


def test_nothing_is_written_down_where_nothing_is_hidden(file, tmp_path):
    federation = by_message(configured("fedavg", file), tmp_path)
    federation.advance()
    assert federation.membership.released == 0 and federation.released == 1
