"""The contract: what a strand may override, and what it sees when its hooks are called.

A strand overrides only what its paper changes from FedAvg. Client hooks are written for ONE client: no client axis,
no writing in place, no Python branch on a tensor's value. The same definition then runs vectorised over a cohort,
in a plain loop, in another process or over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.core.batch import Batch
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.outputs import Outputs
from fedbraid.core.random import stream
from fedbraid.core.returns import DUE, checked
from fedbraid.core.task import Task
from fedbraid.core.tree import PerClient, Tree
from fedbraid.core.vector import Layout
from fedbraid.errors import UserError, unknown

if TYPE_CHECKING:
    from fedbraid.core.chain import Chain

Gradient = Callable[[Tensor], Tensor]
View = tuple[Tensor, Tensor]
"""A frozen model to look through: its parameters and its buffers."""


@dataclass(frozen=True, eq=False)
class Setup:
    """What is known once, before the first round."""

    w: Tensor  # [D] the initial model
    buffers: Tensor  # [Db]
    layout: Layout
    classes: int
    label_bins: int  # entries of a client's label counts: classes, or ranges of a regression's labels
    width: int  # features that the network's last layer receives
    population: int
    cohort: int | None  # clients in every round, or None when their number varies
    rounds: int
    seed: int
    last_layer: str  # its name; empty where the network is that layer alone
    expected: float  # clients in a round, on average
    frozen: Tensor | None = None  # [D] parameters that travel and are not trained

    def of_last_layer(self, parameter: str) -> str:
        """What the last layer's `weight` or `bias` is called in `layout`."""
        return f"{self.last_layer}.{parameter}".removeprefix(".")


@dataclass(frozen=True, eq=False)
class Cohort:
    """Who takes part in a round, and what the server knows of them: never their labels."""

    ids: np.ndarray  # [C]
    sizes: Tensor  # [C]

    def only(self, places: np.ndarray) -> Cohort:
        """Those at `places` of this cohort."""
        at = torch.as_tensor(places, device=self.sizes.device)
        return Cohort(self.ids[places], self.sizes[at])

    def __len__(self) -> int:
        return len(self.ids)


class OverData(Protocol):
    """Adds up `f(outputs, batch)` of a model over a client's whole training set, or the round's first batch."""

    def __call__(self, model: Tensor | View, f: Callable[[Outputs, Batch], Tree], whole: bool = True) -> Tree: ...


class Slope(Protocol):
    """The gradient of a model's mean task loss over a client's whole training set."""

    def __call__(self, model: Tensor | View) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Client:
    """One client in one round, as one strand sees it."""

    start: Tensor  # [D] the model received, where local training begins
    buffers: Tensor  # [Db] the buffers received with it
    trained_buffers: Tensor  # [Db] the buffers now
    initial: View  # the model that the federation began with, and its buffers
    received: Tree  # what this strand sent
    kept: Tree  # what this strand keeps on this client between rounds
    memory: Tree  # what this strand remembers within the round
    chance: Tree  # what this strand drew for the round
    label_counts: Tensor  # [classes]
    size: Tensor  # [] training samples
    relative_size: Tensor  # [] training samples over the population's mean
    steps: Tensor  # [] local steps of this round
    lr: Tensor  # [] this round's learning rate
    optimizer: Optimizer
    task: Task
    layout: Layout
    views: Mapping[str, Outputs]  # outputs on this batch of the models that strands asked to look through
    over_data: OverData  # of a view, or of a model with the buffers as they are now
    slope: Slope  # likewise

    @property
    def received_model(self) -> View:
        return self.start, self.buffers


class Replies(Protocol):
    """What came back. Lazy: nothing is moved or reduced until it is asked for."""

    @property
    def came(self) -> np.ndarray | None: ...  # places in the job's cohort that it came from; None = everybody's

    def each(self, key: str) -> Tensor: ...  # [C, ...] every client's value

    def sum(self, key: str, weights: Tensor) -> Tensor: ...  # sum over clients of weight times value


@dataclass(frozen=True, eq=False)
class Round:
    """The server in one round, as one strand sees it."""

    strand: str
    number: int  # counted from 0
    w: Tensor  # [D] the global model before this round
    kept: Tree  # what this strand keeps on the server
    cohort: Cohort
    setup: Setup
    lr: float
    seed: int
    sent: Tensor  # [D], or [C, D] where every client was sent a model of its own
    replies: Replies | None = None
    shares: Tensor | None = None  # [C] what each model counts in the mean, once it is known
    weights: Tensor | None = None  # [C] what each update counts, likewise

    @property
    def last(self) -> bool:
        return self.number + 1 == self.setup.rounds

    @cached_property
    def rng(self) -> np.random.Generator:
        """This strand's own stream on the server for this round; each hook finds it at its beginning."""
        return stream(self.seed, f"server/{self.strand}", round=self.number)

    def each(self, key: str) -> Tensor:
        """[C, ...] what every client uploaded under this strand's `key`."""
        assert self.replies is not None
        return self.replies.each(f"{self.strand}.{key}")

    def sum(self, key: str, weights: Tensor | None = None) -> Tensor:
        """The (weighted) sum over clients of what they uploaded under this strand's `key`."""
        assert self.replies is not None
        return self.replies.sum(f"{self.strand}.{key}", self.ones if weights is None else weights)

    @property
    def moved(self) -> Tensor:
        """[D] the sum over clients of what local training moved: the model sent back minus the one received."""
        assert self.replies is not None
        received = self.sent.sum(0) if self.sent.dim() == 2 else len(self.cohort) * self.sent
        return self.replies.sum("model", self.ones) - received

    @property
    def models(self) -> Tensor:
        """[C, D] every client's model; costs what it costs."""
        assert self.replies is not None
        return self.replies.each("model")

    @property
    def ones(self) -> Tensor:
        return torch.ones_like(self.cohort.sizes)


DELTA = 1e-5


class Release(NamedTuple):
    """What a strand's noise hides, for the accountant."""

    noise: float  # over sensitivity; 0 = nothing is hidden
    times: int  # how often it is told
    of: Literal["sample", "client"] = "sample"  # whose presence it hides: in a client's payload, or in the step
    delta: float = DELTA


STEP_ALONE = "step alone"
THREE_CLASSES = "three classes"
AS_TRAINED = "model as trained"
DRAWN_ALIKE = "clients drawn alike"
NEEDS = {
    "labels": "that the task is classification",
    "fixed cohort": "the same number of clients in every round",
    "each model": "the models of single clients, not only their sum",
    THREE_CLASSES: "three classes or more",
    AS_TRAINED: "that the model which is uploaded is the one that was trained",
    DRAWN_ALIKE: "that every client is drawn with the same chance in every round",
    STEP_ALONE: "that strands after it on the server see its step, and nothing of the replies",
}
"""What a strand may be unable to do without."""

AVERAGES = "sizes", "uniform"


class Strand:
    """One idea of one paper. Subclass as a frozen dataclass whose fields are the hyper-parameters.

    Order in a chain: `batch`, `logits`, `reweigh`, `rescale`, `update`, `deploy` act in the order listed; losses add
    up; for `grad` the first listed is innermost, so `sam+drift` reads outward from autograd.
    """

    name: ClassVar[str] = ""
    """How it is written in a method; the class's name in lower case unless given."""
    title: ClassVar[str] = ""
    """Paper, authors and year, in one line."""
    neutral: ClassVar[Mapping[str, Any] | None] = None
    """Hyper-parameters that make it FedAvg exactly, if there are any."""
    averages: ClassVar[Literal["sizes", "uniform"]] = "sizes"
    """How its paper averages, where no strand of the chain sets the weights."""
    every_epoch: ClassVar[bool] = False
    """Whether `begin` is called again at each local epoch."""
    first_in: ClassVar[frozenset[str]] = frozenset()
    """Hooks in which it acts before the others, wherever it is listed."""
    last_in: ClassVar[frozenset[str]] = frozenset()
    """Hooks in which it acts after the others, wherever it is listed."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        for hook in HOOKS:
            if hook in cls.__dict__ and not callable(cls.__dict__[hook]):
                raise UserError(f"{cls.__name__} has a field {hook!r}, which is the name of a hook; call it otherwise")
        for declared, known in {"needs": tuple(NEEDS), "first_in": HOOKS, "last_in": HOOKS}.items():
            words = getattr(cls, declared)
            if not isinstance(words, property):  # by its hyper-parameters: not known yet
                _check_words(f"{declared} of {cls.__name__}", words, known)
        _check_words(f"averages of {cls.__name__}", {cls.averages}, AVERAGES)
        for hook in DUE.keys() & cls.__dict__.keys():
            own = cls.__dict__[hook]
            if isfunction(own) and own is not Strand.__dict__[hook]:
                setattr(cls, hook, checked(hook, own))

    def __add__(self, other: Strand | Chain) -> Chain:
        from fedbraid.core.chain import Chain

        return Chain((self,)) + other

    @property
    def sum_only(self) -> frozenset[str]:
        """Uploads that the server uses only as sums in which every client counts the same, so that it need not see
        them; a class attribute where they are made whatever the hyper-parameters.
        """
        return frozenset()

    @property
    def needs(self) -> frozenset[str]:
        """What it cannot do without, in the words of NEEDS; a class attribute where that is so whatever the
        hyper-parameters.
        """
        return frozenset()

    @property
    def claims(self) -> tuple[str, ...]:
        """What only one strand of a chain may do, as words that follow "both"."""
        return ()

    # --- once
    def among(self, others: tuple[Strand, ...]) -> Strand | None:
        """This strand in the company of `others`: itself, a variant, or None where another does its work.

        Where it is None, hyper-parameters that are not its defaults are refused, since they have no effect. Raises
        a UserError where the two make no sense together.
        """
        return self

    def unheard(self, others: tuple[Strand, ...]) -> str:
        """Why hyper-parameters that it was given have no effect in the company of `others`; "" if they have one."""
        return ""

    def under(self, optimizer: Optimizer) -> None:
        """Raises a UserError where its equations do not hold with such local steps."""

    def model(self, module: nn.Module) -> nn.Module:
        """The network, changed: another head, frozen parameters. `module` is a copy and may be written to."""
        return module

    def init_server(self, setup: Setup) -> Tree:
        """State that lasts on the server."""
        return {}

    def init_client(self, setup: Setup) -> Tree:
        """State that lasts on each client."""
        return {}

    def releases(self, rounds: int) -> tuple[float, int] | Release:
        """For the accountant: noise over sensitivity, and how often a client's data are released in so many rounds."""
        return 0.0, 0

    @property
    def hides(self) -> bool:
        """Whether it draws noise that hides clients' data, which nobody who knows the run's seed may draw again."""
        return self.releases(1)[0] > 0

    def concludes(self, rounds: int) -> bool:
        """Whether in a run of so many rounds it does what it would not in a longer one, as `r.last` and
        `setup.rounds` let it; such a run cannot be made longer.
        """
        return False

    # --- server to client
    def send(self, r: Round) -> Tree | PerClient:
        """What to send besides the model. "model" (and "buffers") here replace the model that is sent."""
        return {}

    def probe(self, c: Client) -> Tree:
        """A first exchange, before training: every client of the cohort answers, whichever strand asks."""
        return {}

    def asks(self, r: Round) -> bool:
        """Whether `probe` is needed this round."""
        return True

    def probed(self, r: Round) -> Tree | PerClient:
        """What the server makes of the answers it asked for; takes the place of what `send` gave."""
        return {}

    # --- one client
    def draw(self, rng: np.random.Generator, counts: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """This strand's randomness for a round, as data: arrays whose first axis is the local step.

        Step t has `counts[t]` samples in a batch axis of length `width`; draw for the samples, never for padding.
        """
        return {}

    def draw_once(self, rng: np.random.Generator, setup: Setup) -> dict[str, np.ndarray]:
        """Randomness for a whole round and client, of a fixed shape: `c.chance` in every client hook."""
        return {}

    def begin(self, w: Tensor, c: Client) -> Tree:
        """Memory for this round."""
        return {}

    def batch(self, batch: Batch, c: Client) -> Batch:
        """Change the inputs or labels of a step."""
        return batch

    def views(self, c: Client) -> dict[str, View]:
        """Frozen models whose outputs on each batch are wanted; "received" is the model received."""
        return {}

    def logits(self, logits: Tensor, batch: Batch, c: Client) -> Tensor:
        """Adjust what the task loss sees."""
        return logits

    def task(self, logits: Tensor, batch: Batch, c: Client) -> Tensor:
        """Take the place of the task loss (one strand of a chain at most)."""
        raise AssertionError("only called on a strand that overrides it")

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        """A term to add to the objective."""
        raise AssertionError("only called on a strand that overrides it")

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor:
        """Wrap the gradient: correct `next(w)`, or evaluate it elsewhere."""
        return next(w)

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        """Memory after a local step that ended at `w`."""
        return c.memory

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        """What to upload besides the model ("model" here replaces it), and what to keep."""
        return {}, c.kept

    # --- server
    def weigh(self, n: Tensor, r: Round) -> Tensor:
        """Set the aggregation weights [C], which sum to 1, given the shares of data (one strand of a chain at most)."""
        return n

    def reweigh(self, shares: Tensor, r: Round) -> Tensor:
        """Transform what each model counts in the mean [C], of buffers too; these sum to 1."""
        return shares

    def rescale(self, weights: Tensor, r: Round) -> Tensor:
        """Transform what each client's update counts [C]; these need not sum to 1, and the mean's shares stay."""
        return weights

    def absorb(self, r: Round) -> Tree:
        """Take in what the clients uploaded: the state to keep. Called in every round, averaged or not."""
        return r.kept

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        """Transform the server's step; None ends the chain with no step this round. Also the state to keep."""
        return delta, r.kept

    def deploy(self, w: Tensor, kept: Tree, setup: Setup) -> Tensor:
        """The model to evaluate and hand out."""
        return w

    # --- one client, when all is done
    def personalise(self, w: Tensor, kept: Tree, setup: Setup) -> Tensor:
        """The client's own model, from the one handed out and what this strand keeps on the client."""
        return w


def _check_words(what: str, said: Any, known: Sequence[str]) -> None:
    """Refuse words that mean nothing: they would be ignored."""
    if not isinstance(said, Set):
        raise UserError(f"{what} is {said!r}; give words as a frozenset, of {', '.join(known)}")
    for word in said:
        if word not in known:
            raise unknown(f"word for {what}", word, known)


HOOKS = tuple(name for name, value in vars(Strand).items() if callable(value) and not name.startswith("_"))
"""The names of everything that a strand may override."""

AT_CLIENTS = (
    *("model", "init_client", "probe", "draw", "draw_once", "begin", "batch"),
    *("views", "logits", "task", "loss", "grad", "step", "end"),
)
"""Those of them that change what clients do; the others are the server's."""
