"""Everything that can be known to be wrong with runs before they are trained.

`validate` needs no data, `validate_on_data` needs the data set and the number of clients, `validate_memory` the size of
the model. Each raises a UserError that says what would be right.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedbraid import data, models
from fedbraid.config.inert import refuse_inert
from fedbraid.config.schema import Config, optimizer_of
from fedbraid.core.chain import Chain, overrides
from fedbraid.core.constraints import DRAWN_ALIKE, THREE_CLASSES
from fedbraid.core.metrics import check_metrics
from fedbraid.core.strand import Setup
from fedbraid.data.dataset import Dataset
from fedbraid.engines.memory import free_memory
from fedbraid.errors import UserError
from fedbraid.training.cohorts import check_cohorts
from fedbraid.training.federation import arrivals
from fedbraid.training.run_directory import holds_a_run
from fedbraid.training.run_spec import RunSpec
from fedbraid.training.user_objects import check_supplied


def validate(specs: Sequence[RunSpec], *, resume: bool) -> None:
    """Refuse mistakes of any of these runs that show without data, before the first of them is trained."""
    begun = [spec for spec in specs if spec.started]
    new = [spec for spec in specs if not spec.started]
    if begun and not resume:
        assert begun[0].directory is not None
        raise holds_a_run(begun[0].directory)
    refuse_inert([(s.config, s.chain) for s in new], [(s.config, s.chain) for s in begun])
    for spec in specs:
        validate_settings(spec)
    for spec in begun:  # all of them, before any is made longer
        assert spec.directory is not None
        how = "go on in Python: fedbraid.run(…, {table}=…, out=…, resume=True)"
        check_supplied(spec.directory.config(), spec.objects, spec.directory.path, how)
        spec.directory.check_length(spec.config.rounds, spec.chain)


def validate_settings(spec: RunSpec) -> None:
    """Refuse names that do not exist, options that they do not take, and rounds that the method cannot work with."""
    config, objects = spec.config, spec.objects
    optimizer_of(config)
    if not spec.started:  # what was recorded may name objects that only Python had
        if objects.data is None:
            data.find_dataset(config.data.name, config.data.options)
        if objects.partition is None:
            data.find_partition(config.partition.name, config.partition.options)
        if objects.model is None:
            models.find_network(config.model.name, config.model.options)
    validate_rounds(config, spec.chain)


def validate_on_data(spec: RunSpec, dataset: Dataset, population: int) -> None:
    """Refuse a method, metrics or cohorts that do not suit the data set or the number of clients."""
    validate_fit(spec.config, spec.chain, dataset, population)
    if not spec.started:  # what was recorded with a strand that has no effect goes on
        validate_effect(spec.chain, dataset)


def validate_rounds(config: Config, chain: Chain) -> None:
    """Refuse sampling, optimisers and evaluation that a strand of the chain cannot work with."""
    if "fixed cohort" in chain.needs and config.sampling.scheme == "bernoulli":
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs the same number of clients in every round, "
            "but sampling.scheme is 'bernoulli'; set sampling.scheme=fixed"
        )
    if "fixed cohort" in chain.needs and config.sampling.dropout:
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs every client of a round to come back; set sampling.dropout=0"
        )
    if DRAWN_ALIKE in chain.needs and (config.sampling.scheme == "by_size" or config.sampling.late):
        key = "scheme=fixed" if config.sampling.scheme == "by_size" else "late=0"
        raise UserError(
            f"{_who(chain, DRAWN_ALIKE)} needs every client to be drawn with the same chance in every round; set "
            f"sampling.{key}"
        )
    for strand in chain:
        strand.constraints.check_optimizer(strand, optimizer_of(config))
    if config.evaluate.personal and not chain.using("personalise"):
        raise UserError(
            "evaluate.personal scores clients' own models, and this method has none; take one that does, such as "
            "ditto or fedper, or leave it out"
        )
    if config.evaluate.model == "cohort":
        undone = [s for s in chain.using("deploy") if overrides(s, "update")]  # what it hands out is the mean
        others = [s.name for s in (*chain.using("rescale"), *chain.using("deploy")) if s not in undone]
        if others:
            raise UserError(f"{others[0]} hands out what is no mean of a round's models; set evaluate.model=server")


def validate_fit(config: Config, chain: Chain, dataset: Dataset, population: int) -> None:
    """Refuse labels, metrics or cohorts that the data set or the number of clients cannot give."""
    if "labels" in chain.needs and dataset.task != "classification":
        raise UserError(f"{_who(chain, 'labels')} needs class labels, but {dataset.name} is a regression; leave it out")
    for key in ("target", "per_client", "personal", "groups") if dataset.task != "classification" else ():
        if getattr(config.evaluate, key):
            raise UserError(f"evaluate.{key} is about accuracy, but {dataset.name} is a regression; leave it out")
    check_metrics(config.evaluate.metrics, dataset.task, dataset.classes, dataset.name)
    if config.sampling.clients > population:
        raise UserError(
            f"sampling.clients is {config.sampling.clients}, but there are {population} clients; "
            f"choose at most {population}"
        )
    check_cohorts(config.sampling, population, config.rounds)
    early = int((arrivals(config, population) == 0).sum())
    if "fixed cohort" in chain.needs and (config.sampling.clients or population) > early:
        raise UserError(
            f"{_who(chain, 'fixed cohort')} needs the same number of clients in every round, but only {early} of "
            f"{population} are there from the beginning; set sampling.clients to at most {early}, or "
            "sampling.late=0"
        )


def validate_effect(chain: Chain, dataset: Dataset) -> None:
    """Refuse a strand that would change nothing on such data."""
    if THREE_CLASSES in chain.needs and dataset.classes < 3:
        raise UserError(
            f"{_who(chain, THREE_CLASSES)} distils the classes that are not a sample's own, and of the "
            f"{dataset.classes} of {dataset.name} no two are left to tell apart; leave it out"
        )


def validate_memory(config: Config, setup: Setup, other_way: str = "") -> None:
    """Refuse a cohort whose models do not fit in memory, for a round that holds all of them at once."""
    w, clients = setup.w, setup.cohort or max(1, int(config.sampling.rate * setup.population))
    needed, free = clients * w.numel() * w.element_size(), free_memory(w.device)
    if needed > free:
        fits = max(1, int(0.5 * free / (w.numel() * w.element_size())))
        raise UserError(
            f"the models of a round's {clients:,} clients take {needed / 2**30:.1f} GiB and {free / 2**30:.1f} GiB are "
            f"free; set sampling.clients to {fits:,} or fewer{other_way}"
        )


def _who(chain: Chain, need: str) -> str:
    return next(s.name for s in chain if need in s.constraints.needs)
