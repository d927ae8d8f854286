"""What a method needs of the data, the rounds and the machine, looked at before the first round."""

from __future__ import annotations

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


def check_needs(config: Config, chain: Chain) -> None:
    """What a chain needs of the rounds it is put into."""
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
    if config.evaluate.model == "cohort":
        undone = [s for s in chain.using("deploy") if overrides(s, "update")]  # what it hands out is the mean
        others = [s.name for s in (*chain.using("rescale"), *chain.using("deploy")) if s not in undone]
        if others:
            raise UserError(f"{others[0]} hands out what is no mean of a round's models; set evaluate.model=server")


def check_fit(config: Config, chain: Chain, dataset: Dataset, population: int) -> None:
    """What a chain and metrics need of the data, and the rounds of the number of clients."""
    if "labels" in chain.needs and dataset.task != "classification":
        raise UserError(f"{_who(chain, 'labels')} needs class labels, but {dataset.name} is a regression; leave it out")
    for key in ("target", "per_client", "groups") if dataset.task != "classification" else ():
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


def check_effect(chain: Chain, dataset: Dataset) -> None:
    """That no strand of a new run is without effect on such data; one that was recorded with it is gone on with."""
    if THREE_CLASSES in chain.needs and dataset.classes < 3:
        raise UserError(
            f"{_who(chain, THREE_CLASSES)} distils the classes that are not a sample's own, and of the "
            f"{dataset.classes} of {dataset.name} no two are left to tell apart; leave it out"
        )


def check_memory(config: Config, setup: Setup, other_way: str = "") -> None:
    """That every client's model can be in memory at once, where the round ends with that."""
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
