"""The server's side of a federation, put together from its configuration before anybody is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbraid import data, models
from fedbraid.config.schema import Config, PartitionConfig, optimizer_of, to_dict
from fedbraid.core.client_step import LocalJob
from fedbraid.core.code import own_code
from fedbraid.core.plan import LocalWork
from fedbraid.core.round import begin, one_round
from fedbraid.core.strand import Cohort, Setup
from fedbraid.core.tree import Tree
from fedbraid.data.dataset import Dataset, Partition, check_dataset
from fedbraid.data.sample_facts import BY_CLIENTS, Facts
from fedbraid.deploy.channel import NO_ROUND, Channel
from fedbraid.deploy.evaluators import client_evaluator, server_evaluator
from fedbraid.deploy.membership import Membership
from fedbraid.deploy.messages import Message
from fedbraid.deploy.remote_engine import RemoteEngine, nothing_counted
from fedbraid.deploy.remote_federation import RemoteFederation, WaitPolicy
from fedbraid.deploy.secure_policy import SecurePolicy, check_secure_policy, hidden
from fedbraid.deploy.transport import Transport
from fedbraid.engines.cpu import one_thread
from fedbraid.engines.device import ready
from fedbraid.engines.local_engine import Local
from fedbraid.engines.replies import Stacked
from fedbraid.engines.samples import Clients, Samples
from fedbraid.errors import UserError
from fedbraid.storage.client_store import ClientStore
from fedbraid.strands import parser as methods
from fedbraid.training.network import network_of
from fedbraid.training.resolve import options_of, with_hyper_parameters
from fedbraid.training.run_checks import validate_effect, validate_fit, validate_memory, validate_rounds
from fedbraid.training.simulation import setup_of
from fedbraid.training.user_objects import HELD_ELSEWHERE, UserObjects
from fedbraid.training.watches import find_watches

TOLD = ("method", "rounds", "seed", "strands", "model", "sampling", "local", "optimizer", "augment", "buffers")
"""Settings that clients are told."""


def assemble(
    config: Config,
    transport: Transport,
    membership: Membership,
    waiting: WaitPolicy,
    states: Path,
    objects: UserObjects,
    policy: SecurePolicy | None = None,
    *,
    begun: bool = False,
    initial_weights: Mapping[str, Tensor] | None = None,
) -> RemoteFederation:
    """The federation before its first round, and before anybody is there."""
    config = replace(config, save=replace(config.save, every=1, clients_on_disk=False))
    if config.buffers == "local":
        raise UserError("buffers=local is for simulations; take average or freeze in a federation")
    device, dtype = ready(config)
    chain = methods.parse(config.method, config.strands, objects.strands)
    validate_rounds(config, chain)
    dataset = None if config.data.name == BY_CLIENTS else _loaded(config, objects)
    facts = Facts.of(dataset) if dataset else Facts.read(config.data.options)
    like, population = facts.made_up(), len(membership.roster)
    accuracy_or_loss = replace(config, evaluate=replace(config.evaluate, per_client=False))  # clients tell either
    validate_fit(accuracy_or_loss, chain, like, population)
    if not begun:  # what was recorded with a strand that has no effect goes on
        validate_effect(chain, like)
    _check_rounds(config, waiting, population, "fixed cohort" in chain.needs)
    model = network_of(config, chain, like, objects.model, holds_frozen=False)
    model = model if initial_weights is None else model.beginning_with(initial_weights)
    stand_in = Clients.of(like, Partition((np.arange(2),)), dtype, device)
    setup = setup_of(config, model, like, stand_in, population)
    validate_memory(config, setup)
    optimizer = optimizer_of(config)
    job = LocalJob(chain, model, optimizer, like.task)
    payload = _hello_payload(config, facts, setup, own_code(chain, model.training), secure=policy is not None)
    due, plain = expected_uploads(job, setup, stand_in)
    if policy:
        check_secure_policy(config, chain, due, population, policy)
    channel = Channel(
        transport, membership, partial(_hello, membership, payload, setup), waiting.seconds, waiting.pause
    )
    store = ClientStore(nothing_counted(), states)
    quorum = 0 if "fixed cohort" in chain.needs else waiting.min_clients
    post = RemoteEngine(channel, due, model.frozen, store, quorum, within=chain.within, longest=chain.longest_update)
    if policy:
        post = replace(post, hidden=hidden(chain), policy=policy, plain=plain)
    if dataset:
        evaluator = server_evaluator(
            config, model, Samples.of(dataset, dataset.test, dtype, device), channel, like.task
        )
    else:
        evaluator = client_evaluator(config, channel, like.task)
    return RemoteFederation(
        config,
        chain,
        model,
        optimizer,
        setup,
        post,
        store,
        begin(chain, setup),
        facts,
        evaluator,
        waiting,
        watches=find_watches(config.analyses),
    )


def _loaded(config: Config, objects: UserObjects) -> Dataset:
    dataset = data.load(config.data.name, objects.data_dir, **config.data.options)
    check_dataset(dataset)
    return dataset


def expected_uploads(job: LocalJob, setup: Setup, stand_in: Clients) -> tuple[dict[str, Tree], bool]:
    """Return the uploads of a probe and of training, and whether the server sums models twice.

    It is found out on one that is made up.
    """
    blank = ClientStore({s.name: s.init_client(setup) for s in job.chain})
    engine = Local(job, setup, stand_in, LocalWork(batch=0, steps=1), blank, "loop", workers=1)
    cohort = Cohort(np.zeros(1, dtype=np.int64), torch.as_tensor(stand_in.sizes).to(setup.w))
    flow = one_round(job.chain, job.optimizer.lr, setup, begin(job.chain, setup), cohort, setup.seed)
    found: dict[str, Tree] = {}
    with one_thread():
        first = next(flow)
        if job.chain.using("probe"):
            answers = engine.run(replace(first, kind="probe"))
            found["probe"] = {key: value[0] for key, value in answers.uploads.items()}
            first = flow.send(answers) if first.kind == "probe" else first
        trained = _Watched(engine.run(first))
        found["train"] = {key: value[0] for key, value in trained.replies.uploads.items()}
        with suppress(StopIteration):
            flow.send(trained)
    if job.model.frozen is not None:
        found["train"]["model"] = found["train"]["model"][~job.model.frozen]
    return found, trained.sums["model"] > 1


@dataclass(eq=False)
class _Watched:
    """Replies that note which sums are asked for."""

    replies: Stacked
    sums: Counter[str] = field(default_factory=Counter)
    came: None = None

    def each(self, key: str) -> Tensor:
        return self.replies.each(key)

    def sum(self, key: str, weights: Tensor) -> Tensor:
        self.sums[key] += 1
        return self.replies.sum(key, weights)


def _hello_payload(
    config: Config, facts: Facts, setup: Setup, code: Mapping[str, str], *, secure: bool
) -> dict[str, Any]:
    """Return the settings that every client receives; none of them names a file of the server."""
    settings = {key: value for key, value in to_dict(config).items() if key in TOLD}
    settings["model"] = {key: value for key, value in settings["model"].items() if key not in models.FILES}
    if config.evaluate.validation:
        settings["evaluate"] = {"validation": config.evaluate.validation}
    settings["engine"] = {"dtype": config.engine.dtype, "precision": config.engine.precision}
    payload = {
        "settings": settings,
        "facts": facts.told(),
        "population": setup.population,
        "network": setup.layout.told,
    }
    return payload | ({"code": code} if code else {}) | ({"secure": True} if secure else {})


def _hello(membership: Membership, greeting: dict[str, Any], setup: Setup, number: int) -> Message:
    """Return the hello message to the client of this number."""
    model = {"model": setup.w, "buffers": setup.buffers}
    return Message("hello", membership.run, NO_ROUND, greeting | {"client": number}, model)


def resolved(federation: RemoteFederation, objects: UserObjects) -> Config:
    """The configuration as it is recorded, with every default written out."""
    config = federation.config
    named = config.data
    if named.name != BY_CLIENTS:
        named = replace(named, options=options_of(data.describe(), named))
    network = config.model
    if objects.model is None:
        network = replace(network, options=options_of([models.find_network(network.name, {})], network))
    return replace(
        with_hyper_parameters(federation),
        data=named,
        partition=PartitionConfig(HELD_ELSEWHERE, clients=federation.setup.population),
        model=network,
        engine=replace(config.engine, kind="auto"),
    )


def _check_rounds(config: Config, waiting: WaitPolicy, population: int, fixed_cohort: bool) -> None:
    """That the server is asked for nothing that only somebody who holds all data can do."""
    simulated = {"sampling.dropout": config.sampling.dropout, "sampling.late": config.sampling.late}
    for key, value in simulated.items():
        if value:
            raise UserError(f"{key} plays clients that are lost or late; a federation has real ones, so leave it out")
    if config.sampling.scheme == "by_size":
        raise UserError(
            "sampling.scheme=by_size needs to know how many samples every client has before the first round, which "
            "clients tell when they come; set sampling.scheme=fixed"
        )
    if config.sampling.scheme == "listed" or config.sampling.draws != "own":
        raise UserError("cohorts of released code number the clients of a simulation; set sampling.scheme=fixed")
    if config.evaluate.groups:
        raise UserError("evaluate.groups needs to know clients' labels, which stay with them; leave it out")
    if config.evaluate.personal:
        raise UserError("evaluate.personal needs clients' own models, which stay with them; leave it out")
    if config.evaluate.per_client and config.data.name != BY_CLIENTS:
        raise UserError(
            f"evaluate.per_client needs clients that test the model on samples of their own, as with "
            f"data.name={BY_CLIENTS}; here the server tests it, so leave it out"
        )
    if config.evaluate.metrics and config.data.name == BY_CLIENTS:
        raise UserError("evaluate.metrics needs a test set that the server has; clients tell accuracy and loss alone")
    for watch in find_watches(config.analyses):
        if watch.scored:
            raise UserError(f"the analysis {watch.name} needs clients' labels, which stay with them; leave it out")
    most = config.sampling.clients or population
    if fixed_cohort and waiting.min_clients not in (0, most):
        raise UserError(
            f"{config.method} needs all {most} clients of a round, and min_clients is {waiting.min_clients}; "
            "leave it out"
        )
    if waiting.min_clients > most:
        raise UserError(f"min_clients is {waiting.min_clients}, but a round has {most} clients; set at most {most}")
