"""The contract: what a strand may override, and what it sees when its hooks are called.

A strand overrides only what its paper changes from FedAvg. Client hooks are written for ONE client: no client axis,
no writing in place, no Python branch on a tensor's value. The same definition then runs vectorised over a cohort,
in a plain loop, in another process or over a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedbraid.core import renamed
from fedbraid.core.batch import Batch
from fedbraid.core.constraints import Constraints, check_constraints, check_words
from fedbraid.core.optimizer import Optimizer
from fedbraid.core.outputs import Outputs
from fedbraid.core.random import stream
from fedbraid.core.returns import DUE, checked
from fedbraid.core.task import Task
from fedbraid.core.tree import Arrays, Ask, PerClient, Tree
from fedbraid.core.vector import Layout
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.core.chain import Chain

Gradient = Callable[[Tensor], Tensor]
View = tuple[Tensor, Tensor]
"""A frozen model to look through: its parameters and its buffers."""


TRAINED = "trained"
"""The key of memory whose vector [D] says which parameters local steps move: 1 those that do, 0 those that rest."""


def no_batch(model: View) -> View:
    """Refuse a batch's gradient where there is no batch."""
    raise RuntimeError("batch_gradient may be called in grad, where there is a batch")


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
    norms: frozenset[str] = frozenset()  # parameters of normalisation layers
    label_counts: Tensor | None = None  # [label_bins] of all clients together; None where the server does not know them

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


class FullGradient(Protocol):
    """The gradient of a model's mean task loss over a client's whole training set."""

    def __call__(self, model: Tensor | View) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class Client:
    """One client in one round, as one strand sees it."""

    start: Tensor  # [D] where local training begins: the model received, unless a strand's `begin` chooses another
    received_model: View  # the model received and its buffers
    buffers: Tensor  # [Db] the buffers received with it
    trained_buffers: Tensor  # [Db] the buffers now
    initial: View  # the model that the federation began with, and its buffers
    received: Tree  # what this strand sent
    state: Tree  # what this strand keeps on this client between rounds
    memory: Tree  # what this strand remembers within the round
    draws: Tree  # what this strand drew once for the round
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
    full_gradient: FullGradient  # likewise
    batch_gradient: Callable[[View], View]  # in `grad`: of this batch's objective for another model and its buffers;
    # returns the gradient and the buffers afterwards, and leaves the buffers of the model that is trained alone

    kept = renamed.reads("Client.kept", "state")
    chance = renamed.reads("Client.chance", "draws")
    slope = renamed.reads("Client.slope", "full_gradient")


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
    state: Tree  # what this strand keeps on the server
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

    kept = renamed.reads("Round.kept", "state")


DELTA = 1e-5


def every_round(rounds: int) -> int:
    """One release in each round."""
    return rounds


class Noise(NamedTuple):
    """What a strand's noise hides, for the accountant."""

    scale: float = 0.0  # its standard deviation over the sensitivity; 0 = nothing is hidden
    of: Literal["sample", "client"] = "sample"  # whose presence it hides: in a client's payload, or in the step
    delta: float = DELTA
    releases: Callable[[int], int] = every_round  # how often a run of so many rounds releases what it hides


class Release(NamedTuple):
    """What the earlier hook `releases` returned; `Noise` is the declaration of today."""

    noise: float
    times: int
    of: Literal["sample", "client"] = "sample"
    delta: float = DELTA


@dataclass(frozen=True, eq=False)
class Draws:
    """What a strand draws from, for one client in one round: two streams that are its own."""

    counts: np.ndarray  # [steps] samples of each local step
    width: int  # length of the batch axis: draw for the samples of a step, never for its padding
    known: Setup | None  # None where a plan is made without a federation
    streams: tuple[Callable[[], np.random.Generator], Callable[[], np.random.Generator]]

    @property
    def setup(self) -> Setup:
        """What is known once, such as the number of features."""
        assert self.known is not None, "this strand draws by what the federation is, and there is none"
        return self.known

    @cached_property
    def steps(self) -> np.random.Generator:
        """The stream of what is drawn for local steps."""
        return self.streams[0]()

    @cached_property
    def once(self) -> np.random.Generator:
        """The stream of what is drawn once for the round."""
        return self.streams[1]()


AVERAGES = "sizes", "uniform"


class Strand:
    """One idea of one paper. Subclass as a frozen dataclass whose fields are the hyper-parameters.

    Order in a chain: `batch`, `logits`, `weigh`, `rescale`, `update`, `deploy` act in the order listed; losses add
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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        for hook in HOOKS:
            if hook in cls.__dict__ and not callable(cls.__dict__[hook]):
                raise UserError(f"{cls.__name__} has a field {hook!r}, which is the name of a hook; call it otherwise")
        renamed.translate(cls)
        declared: Any = cls.constraints
        if not isinstance(declared, property):  # by its hyper-parameters: not known yet
            check_constraints(cls.__name__, declared, HOOKS)
        check_words(f"averages of {cls.__name__}", {cls.averages}, AVERAGES)
        for hook in DUE.keys() & cls.__dict__.keys():
            own = cls.__dict__[hook]
            if isfunction(own) and own is not Strand.__dict__[hook]:
                setattr(cls, hook, checked(hook, own))

    def __add__(self, other: Strand | Chain) -> Chain:
        from fedbraid.core.chain import Chain

        return Chain((self,)) + other

    @property
    def constraints(self) -> Constraints:
        """What composition must know; a class attribute where that is so whatever the hyper-parameters."""
        return Constraints()

    needs, claims, sum_only, first_in, last_in = map(renamed.declared, renamed.DECLARATIONS)

    @property
    def privacy(self) -> Noise:
        """The noise that it draws to hide clients' data."""
        return Noise()

    @property
    def hides(self) -> bool:
        """Whether it draws noise that hides clients' data, which nobody who knows the run's seed may draw again."""
        return self.privacy.scale > 0

    # --- once
    def model(self, module: nn.Module) -> nn.Module:
        """The network, changed: another head, frozen parameters. `module` is a copy and may be written to."""
        return module

    def init_server(self, setup: Setup) -> Tree:
        """State that lasts on the server."""
        return {}

    def init_client(self, setup: Setup) -> Tree:
        """State that lasts on each client."""
        return {}

    # --- server to client
    def send(self, r: Round) -> Tree | PerClient | Ask:
        """What to send besides the model. "model" (and "buffers") here replace the model that is sent.

        `Ask(...)` has a first exchange before training: each client of the cohort receives what it holds and answers
        by `probe`. Then `send` is called again, with the answers in `r` (`r.replies` is no longer None), and what it
        returns takes the place of what was asked with.
        """
        return {}

    # --- one client
    def probe(self, c: Client) -> Tree:
        """The client's answer to an exchange before training, whichever strand asks for it."""
        return {}

    def draw(self, d: Draws) -> tuple[Arrays, Arrays]:
        """This strand's randomness for a round, as data: for the local steps, and once for the round.

        Arrays for the steps have the step as their first axis and are in `batch.draws`; those for the round have a
        fixed shape and are `c.draws` in every client hook.
        """
        return {}, {}

    def begin(self, w: Tensor, c: Client) -> Tree:
        """Memory for this round.

        "model" (and "buffers") here replace the model from which local training starts, `c.start`; the client uploads
        what it ends at. "trained" [D] in the memory says which parameters local steps move (1) and which rest (0).
        """
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

    def loss(self, out: Outputs, batch: Batch, c: Client) -> Tensor:
        """A term to add to the objective. With the claim TASK_LOSS it is computed instead of the task loss, of logits
        as strands have adjusted them.
        """
        raise AssertionError("only called on a strand that overrides it")

    def grad(self, w: Tensor, c: Client, next: Gradient) -> Tensor | tuple[Tensor, Tree]:
        """Wrap the gradient: correct `next(w)`, or evaluate it elsewhere. A pair holds the memory afterwards, too."""
        return next(w)

    def step(self, w: Tensor, out: Outputs, batch: Batch, c: Client) -> Tree:
        """Memory after a local step that ended at `w`."""
        return c.memory

    def end(self, w: Tensor, c: Client) -> tuple[Tree, Tree]:
        """What to upload besides the model ("model" and "buffers" here replace these), and what to keep."""
        return {}, c.state

    # --- server
    def weigh(self, shares: Tensor, r: Round) -> Tensor:
        """What each model counts in the mean [C], of buffers too; these sum to 1.

        One strand of a chain sets them, given the shares of data; strands that are `last_in` this hook transform what
        the others gave.
        """
        return shares

    def rescale(self, weights: Tensor, r: Round) -> Tensor:
        """Transform what each client's update counts [C]; these need not sum to 1, and the mean's shares stay.

        A matrix [C, D] weighs every coordinate by itself, as medians do; a strand that gives one needs "each model".
        """
        return weights

    def aggregate(self, updates: Tensor, r: Round) -> tuple[Tensor, Tree]:
        """What to step by instead of the mean of the updates, and the state to keep. One strand of a chain may.

        `updates` [C, D + Db] are the uploaded models and buffers minus those that were sent; the aggregate is
        [D + Db]. The clients' shares are `r.shares` [C]. Strands that override `update` transform the model's part.
        """
        raise AssertionError("only called on a strand that overrides it")

    def absorb(self, r: Round) -> Tree:
        """Take in what the clients uploaded: the state to keep. Called in every round, averaged or not."""
        return r.state

    def update(self, delta: Tensor, r: Round) -> tuple[Tensor | None, Tree]:
        """Transform the server's step; None ends the chain with no step this round. Also the state to keep."""
        return delta, r.state

    def deploy(self, w: Tensor, state: Tree, setup: Setup) -> Tensor:
        """The model to evaluate and hand out."""
        return w

    # --- one client, when all is done
    def personalise(self, w: Tensor, state: Tree, setup: Setup) -> Tensor | View:
        """The client's own model, from the one handed out and what this strand keeps on the client.

        A pair has buffers of the client's own as well.
        """
        return w


HOOKS = tuple(name for name, value in vars(Strand).items() if callable(value) and not name.startswith("_"))
"""The names of everything that a strand may override."""

AT_CLIENTS = (
    *("model", "init_client", "probe", "draw", "begin", "batch"),
    *("views", "logits", "loss", "grad", "step", "end"),
)
"""Those of them that change what clients do; the others are the server's."""
