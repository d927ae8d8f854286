"""The server of a federation: the rounds of `fedbraid run`, with clients that are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedbraid import models
from fedbraid.config.inert import refuse_inert
from fedbraid.config.schema import Config
from fedbraid.core.strand import Strand
from fedbraid.deploy.assembly import assemble, resolved
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.remote_federation import RemoteFederation, WaitPolicy
from fedbraid.deploy.secure_policy import BOUND, SecurePolicy
from fedbraid.deploy.transport import InProcess, Transport
from fedbraid.deploy.update_limits import UpdateLimits
from fedbraid.engines.device import device_of
from fedbraid.training.results import Run
from fedbraid.training.run_directory import RunDirectory
from fedbraid.training.run_writer import OnRound, RunWriter
from fedbraid.training.user_objects import UserObjects


def conduct(
    config: Config,
    transport: Transport,
    roster: Sequence[str],
    *,
    out: Path,
    resume: bool = False,
    min_clients: int = 0,
    seconds: float = 600.0,
    tries: int = 10,
    pause: float = 10.0,
    on_round: OnRound | None = None,
    data_dir: Path | None = None,
    own: Sequence[type[Strand]] = (),
    network: models.Own | None = None,
    secure: bool = False,
    bound: float = BOUND,
    threshold: int = 0,
    verify: Callable[[str, bytes, bytes], bool] | None = None,
    limits: UpdateLimits | None = None,
) -> Run:
    """Train a federation whose clients are the names of the roster; a client's number is its place there.

    It begins once `min_clients` of them are there (0 = all), and a round counts if so many of those who were asked
    answer within `seconds` (0 = all). Otherwise it is tried again after a `pause`, `tries` times in all. `config` names
    the data that the model is tested on; with `data.name="clients"` the clients test it on their own. `own` are strands
    beyond FedBraid's and `network` is one, by the name that `config` has for it; clients need to have them too.

    With `secure` the server learns models, and what strands use as plain sums, only as sums over clients, whose numbers
    are at most `bound` in size; `threshold` clients of a round can unmask its sum (0 = the smallest majority).
    Where clients sign their keys, `verify` (`identity.PublicKeys`) finds those who do not. `limits` bound what one
    client can do to the model.
    """
    waiting = WaitPolicy(min_clients, seconds, tries, pause)
    policy = SecurePolicy(bound, threshold, verify) if secure else None
    objects = UserObjects(model=network, strands=tuple(own), data_dir=data_dir)
    writer = _prepared(config, transport, roster, Path(out), resume, waiting, objects, policy, limits)
    federation = writer.federation
    with writer.locked():
        writer.check(resume)
        federation.membership.open()
        writer.open()
        if not federation.finished:
            federation.gather()
        while not federation.finished:
            writer.note(federation.advance(), on_round)
        return writer.result()


def check_federation(
    config: Config,
    roster: Sequence[str],
    *,
    out: Path,
    resume: bool = False,
    min_clients: int = 0,
    data_dir: Path | None = None,
    own: Sequence[type[Strand]] = (),
    network: models.Own | None = None,
    secure: bool = False,
) -> None:
    """Refuse what `conduct` would refuse before anybody is there. Nothing is written, and no GPU is taken."""
    device_of(config.engine.device)
    here = replace(config, engine=replace(config.engine, device="cpu"))
    objects = UserObjects(model=network, strands=tuple(own), data_dir=data_dir)
    policy = SecurePolicy() if secure else None
    nobody, waiting = InProcess({}), WaitPolicy(min_clients)
    writer = _prepared(here, nobody, roster, Path(out), resume, waiting, objects, policy)
    writer.config = replace(writer.config, engine=replace(writer.config.engine, device=config.engine.device))
    writer.check(resume)
    if writer.federation.membership.file.exists():
        writer.federation.membership.open()


def _prepared(
    config: Config,
    transport: Transport,
    roster: Sequence[str],
    out: Path,
    resume: bool,
    waiting: WaitPolicy,
    objects: UserObjects,
    policy: SecurePolicy | None,
    limits: UpdateLimits | None = None,
) -> RunWriter[RemoteFederation]:
    """The federation and its directory, where everything fits together as far as the configuration says."""
    directory = RunDirectory(out)
    membership = Membership(
        directory.path / "federation.json", tuple(roster), policy is not None, limits or UpdateLimits()
    )
    begun = resume and directory.started
    weights = directory.initial_weights() if begun and objects.model is not None else None
    if not directory.started:  # one that was goes on with settings that were allowed then
        refuse_inert([(config, objects.chain_of(config))])
    states = directory.states
    federation = assemble(
        config, transport, membership, waiting, states, objects, policy, begun=begun, initial_weights=weights
    )
    weights = federation.model.tensors if objects.model is not None else None
    return RunWriter(federation, resolved(federation, objects), directory, weights)
