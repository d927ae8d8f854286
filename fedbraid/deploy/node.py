"""A client of a federation: what its machine does with a letter.

A `Node` is cheap to make and remembers nothing by itself, so a fresh process may answer every letter. What must last is
in its home folder (`home`). A client's state moves on only with what the server counted: each question names the letter
whose answer counted last, and training begins from the state after that one. So an answer that was lost on its way, a
server that goes on from a checkpoint and a client that is killed at any instant all leave the two of them in step.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedbraid import models
from fedbraid.config.schema import Config, from_dict, optimizer_of
from fedbraid.core.client_step import LocalJob
from fedbraid.core.code import own_code
from fedbraid.core.model import Model
from fedbraid.core.round import Job
from fedbraid.core.strand import Cohort, Setup, Strand
from fedbraid.core.tree import Tree
from fedbraid.data.dataset import Dataset, Partition, Split
from fedbraid.data.noise import noisy
from fedbraid.data.partitions.ranges import LABEL_RANGES, ranges
from fedbraid.data.sample_facts import Facts, OwnMatter
from fedbraid.data.validation import held_out_by
from fedbraid.deploy.holding import Held, Holding
from fedbraid.deploy.home import At, Home
from fedbraid.deploy.letters import Letter, Refused, Stranger, check_finite, check_tensors, mark, read
from fedbraid.deploy.scores import COUNTED, Score, asked
from fedbraid.deploy.secrecy import MODEL, hidden
from fedbraid.engines.cpu import one_thread
from fedbraid.engines.device import ready
from fedbraid.engines.local_engine import Local
from fedbraid.engines.samples import Clients, Samples
from fedbraid.errors import UserError
from fedbraid.strands import parser as methods
from fedbraid.training.evaluation import evaluate
from fedbraid.training.network import network_of
from fedbraid.training.simulation import setup_of
from fedbraid.training.user_objects import UserObjects

if TYPE_CHECKING:
    from fedbraid.deploy.identity import Identity

log = logging.getLogger("fedbraid")

MOST = 1 << 31
"""Bytes of a letter."""


class Node:
    """A client. `data` are its samples, `own` the strands and `network` the network beyond FedBraid's that it knows.

    With an `identity` it signs its keys of secure sums, and takes part in those only where everybody does. A `secure`
    one takes part only where the server learns models as sums over clients.
    """

    def __init__(
        self,
        home: Path,
        name: str,
        data: Holding,
        *,
        own: Sequence[type[Strand]] = (),
        network: models.Own | None = None,
        device: str = "auto",
        most: int = MOST,
        identity: Identity | None = None,
        secure: bool = False,
    ) -> None:
        self.identity, self.secure, self.network = identity, secure, network
        self.home, self.name, self.data, self.own, self.device, self.most = home, name, data, own, device, most

    def answer(self, letter: bytes) -> bytes:
        """The answer to a letter. Whatever goes wrong is answered with a refusal and its reason."""
        run, round, stranger = "", -1, False
        try:
            opened = read(letter, self.most)
            run, round = opened.run, opened.round
            if opened.kind not in self._answers:
                raise Refused(f"nothing is known of letters of kind {opened.kind[:40]!r}")
            home = Home(self.home, run)
            with home.locked():
                return self._answers[opened.kind](self, home, letter, opened)
        except (Refused, UserError) as no:
            log.warning("%s refused a letter: %s", self.name, no)
            reason, stranger = no.told if isinstance(no, OwnMatter) else str(no), isinstance(no, Stranger)
        except Exception as error:
            log.exception("%s could not answer a letter", self.name)
            reason = f"it failed with {type(error).__name__}; its own log says more"
        told = {"to": mark(letter), "reason": reason, "stranger": stranger}
        return Letter("refusal", run, round, told).written()

    def _hello(self, home: Home, content: bytes, letter: Letter) -> bytes:
        """Finds out whether everything fits before there is anything to do."""
        desk = self._desk(letter)
        told = letter.told.get("code")
        for name, code in desk.own_code.items():
            if isinstance(told, dict) and told.get(name, code) != code:
                log.warning(
                    "the code of %s here is not the server's; clients with different code train differently", name
                )
        more = [name for name in desk.held.dataset.features if name not in desk.dataset.features]
        if more:
            log.info("the federation has no columns %s; they are not trained on", ", ".join(more))
        home.keep_hello(content)
        told = {"to": mark(content), "samples": int(desk.clients.sizes[0]), COUNTED["test"]: len(desk.held.tests)}
        if desk.config.evaluate.validation:
            told[COUNTED["validation"]] = len(desk.validation)
        return Letter("answer", letter.run, letter.round, told).written()

    def _work(self, home: Home, content: bytes, letter: Letter) -> bytes:
        """A probe, or training."""
        summed = "sum" in letter.told
        at = At(letter.round, mark(letter.question.written() if summed else content))
        saved = home.answer(at) or self._worked(home, letter, at)
        if not summed:
            return saved
        from fedbraid.deploy.summing import Me, introduced

        answer = read(saved, self.most)
        advert = introduced(home, Me(self.name, self.identity), letter, letter.kind, at)
        return replace(answer, told={**answer.told, "to": mark(content), **advert}).written()

    def _worked(self, home: Home, letter: Letter, at: At) -> bytes:
        counted = At.read(letter.told.get("counted"))
        desk = self._desk(self._greeting(home))
        question = self._question(home, letter, desk)
        kept = _Kept(_before(home, counted, desk))
        with one_thread():
            replies = desk.engine(letter, kept).run(question)
        uploads = {key: value[0] for key, value in replies.uploads.items()}
        if letter.kind == "probe":
            home.keep_probe(at, letter.question.written())
        elif desk.model.frozen is not None:
            uploads["model"] = uploads["model"][~desk.model.frozen]
        hides = {key: value for key, value in uploads.items() if key in desk.hidden}
        shows = {key: value for key, value in uploads.items() if key not in hides}
        if hides and "sum" not in letter.told:
            raise Refused("it asks for numbers that are to be sent masked only")
        check_finite(hides)  # masked, nobody else can see it
        told = {"to": at.mark, "forward": replies.work.forward, "backward": replies.work.backward}
        answer = Letter("answer", letter.run, letter.round, told, shows).written()
        home.tidy(letter.round, counted)
        if kept.after:
            home.keep_state(at, kept.after)  # before the answer leaves
        if hides:
            home.keep_hidden(at, hides)
        home.keep_answer(at, answer)
        return answer

    def _sum(self, home: Home, content: bytes, letter: Letter) -> bytes:
        """A step of a secure sum."""
        from fedbraid.deploy.summing import STEPS, Me

        self._greeting(home)
        answer = STEPS[letter.kind](home, Me(self.name, self.identity), letter)
        return replace(answer, told={**answer.told, "to": mark(content)}).written()

    def _evaluate(self, home: Home, content: bytes, letter: Letter) -> bytes:
        """How a model does on samples of the client's own that it does not train on."""
        desk = self._desk(self._greeting(home))
        check_tensors(letter.tensors, desk.model_like)
        here = {key: value.to(desk.setup.w.device) for key, value in letter.tensors.items()}
        told: dict[str, Any] = {"to": mark(content)}
        for part in asked(letter):
            samples = desk.tests() if part == "test" else desk.validation
            if not len(samples):
                raise Refused(f"it has no {part} samples")
            with one_thread():
                metrics, correct = evaluate(desk.model, here["model"], here["buffers"], samples)
            hits = None if metrics["accuracy"] is None else int(correct.sum())
            told |= Score(len(samples), metrics["loss"] * len(samples), hits).told(part)
        return Letter("answer", letter.run, letter.round, told).written()

    _answers: dict[str, Callable[[Node, Home, bytes, Letter], bytes]] = {
        "hello": _hello,
        "probe": _work,
        "train": _work,
        "evaluate": _evaluate,
        "advert": _sum,
        "share": _sum,
        "mask": _sum,
        "reveal": _sum,
    }

    def _greeting(self, home: Home) -> Letter:
        """What the server said when it said hello."""
        content = home.hello()
        if content is None:
            raise Stranger("it does not know this run")
        return read(content, self.most)

    def _desk(self, hello: Letter) -> Desk:
        """Everything that training needs, from what the server told and what the client holds."""
        settings, facts = hello.told.get("settings"), hello.told.get("facts")
        if not isinstance(settings, dict) or not isinstance(facts, dict):
            raise Refused("it does not say what is to be done")
        config = from_dict(settings)
        config = replace(config, engine=replace(config.engine, device=self.device))
        try:
            held = self.data.load()
        except UserError as error:
            raise OwnMatter(str(error), "its data cannot be read") from error
        named = self.network is not None and models.name_of(self.network) == config.model.name
        objects = UserObjects(model=self.network if named else None, strands=tuple(self.own))
        desk = _desk(config, Facts.read(facts), hello, held, objects)
        if self.secure and not desk.hidden >= MODEL:
            raise Refused("it takes part only where the server learns models as sums (serve --secure)")
        return desk

    def _question(self, home: Home, letter: Letter, desk: Desk) -> Job:
        """The job that a letter asks for; what it need not say again is in the probe's letter."""
        tensors, already = dict(letter.tensors), letter.told.get("already", [])
        if already:
            after = At.read(letter.told.get("after"))
            probe = home.probe(after) if after else None
            if probe is None:
                raise Refused("it goes on from a question that was not asked here")
            before = read(probe, self.most).tensors
            tensors = {key: t for key, t in before.items() if _belongs(key) in already} | tensors
        check_finite(tensors)
        check_tensors({key: tensors[key] for key in desk.model_like if key in tensors}, desk.model_like)
        device = desk.setup.w.device
        sent: dict[str, Tree] = {}
        for key, tensor in tensors.items():
            if key not in desk.model_like:
                strand, _, name = key.partition("/")
                sent.setdefault(strand, {})[name] = tensor.to(device)
        sizes = torch.as_tensor(desk.clients.sizes).to(desk.setup.w)
        return Job(
            kind="probe" if letter.kind == "probe" else "train",
            round=letter.round,
            cohort=Cohort(np.array([desk.number]), sizes),
            model=tensors["model"].to(device),
            buffers=tensors["buffers"].to(device),
            sent=dict(sent),
            lr=letter.number("lr"),
            seed=letter.count("seed"),
        )


@dataclass(frozen=True, eq=False)
class Desk:
    """What a client works with."""

    config: Config
    held: Held
    dataset: Dataset  # as the federation takes it
    clients: Clients  # the one
    validation: Samples  # that it holds out of its training samples
    setup: Setup
    job: LocalJob
    hidden: frozenset[str]  # uploads that leave it masked

    def tests(self) -> Samples:
        """The client's own test samples."""
        own, test, samples = self.held.tests, self.dataset.test, self.clients.samples
        return Samples.of(self.dataset, Split(test.x[own], test.y[own]), samples.dtype, samples.x.device)

    @property
    def model(self) -> Model:
        return self.job.model

    @property
    def own_code(self) -> dict[str, str]:
        return own_code(self.job.chain, self.model.training)

    @property
    def number(self) -> int:
        return self.clients.numbered([0])[0]

    @property
    def model_like(self) -> Tree:
        return {"model": self.setup.w, "buffers": self.setup.buffers}

    @property
    def blank(self) -> dict[str, Tree]:
        """What strands keep on a client that has not taken part yet."""
        each = {s.name: s.init_client(self.setup) for s in self.job.chain}
        return {strand: tree for strand, tree in each.items() if tree}

    def engine(self, letter: Letter, kept: _Kept) -> Local:
        """One client by itself; what depends on the others is told with each question."""
        return Local(
            self.job,
            self.setup,
            self.clients,
            self.config.local,
            kept,
            "loop",
            workers=1,
            population_mean=letter.number("mean", 1),
            least_width=letter.count("width", 1),
            secret=secrets.randbits(64),  # anew for every answer: the same noise twice could be taken off, too
        )


def _desk(config: Config, facts: Facts, hello: Letter, held: Held, objects: UserObjects) -> Desk:
    device, dtype = ready(config)
    chain = methods.parse(config.method, config.strands, objects.strands)
    dataset = facts.fitted(held.dataset)
    samples = Samples.of(dataset, noisy(dataset, held.partition), dtype, device, config.augment)
    own, number = np.asarray(held.partition.clients[held.client], dtype=np.int64), hello.count("client")
    held_out = held_out_by(number, dataset.train.y[own], config.evaluate.validation, config.seed)
    validation = samples.at(torch.as_tensor(own[held_out]).to(device))
    clients = Clients.of(dataset, Partition((own[~held_out],)), dtype, device, config.augment, samples).only([0])
    if facts.ranges:
        counts = np.bincount(ranges(clients.samples.labels, np.array(facts.ranges)), minlength=LABEL_RANGES)
        clients = replace(clients, label_counts=torch.as_tensor(counts)[None].to(clients.label_counts))
    clients = replace(clients, numbers=np.array([number]))
    model = network_of(config, chain, dataset, objects.model)
    setup = setup_of(config, model, dataset, clients, hello.count("population", 1))
    if hello.told.get("network") != setup.layout.told:
        raise Refused(f"the parameters of its network {config.model.name!r} have other names or shapes here")
    check_tensors(hello.tensors, {"model": setup.w, "buffers": setup.buffers})
    initial = {key: value.to(device) for key, value in hello.tensors.items()}
    setup = replace(setup, w=initial["model"], buffers=initial["buffers"])
    hides = hidden(chain) if hello.told.get("secure") is True else frozenset[str]()
    job = LocalJob(chain, model, optimizer_of(config), dataset.task)
    return Desk(config, held, dataset, clients, validation, setup, job, hides)


def _before(home: Home, counted: At | None, desk: Desk) -> dict[str, Tree]:
    """What strands keep on the client: as of the letter whose answer counted last."""
    blank = desk.blank
    if counted is None or not blank:
        return blank
    state = home.state(counted)
    if state is None:
        raise Refused(f"what it kept after round {counted.round + 1} is not here any more")
    due = {f"{strand}/{name}": value for strand, tree in blank.items() for name, value in tree.items()}
    check_tensors(state, due)
    device = desk.setup.w.device
    return {s: {name: state[f"{s}/{name}"].to(device) for name in tree} for s, tree in blank.items()}


class _Kept:
    """The one client's state as an engine asks for it; what it becomes is only noted."""

    def __init__(self, before: dict[str, Tree]) -> None:
        self.before = before
        self.after: Tree = {}  # "strand/name"

    def read(self, ids: Sequence[int]) -> dict[str, Tree]:
        return {s: {name: value[None] for name, value in tree.items()} for s, tree in self.before.items()}

    def write(self, ids: Sequence[int], kept: dict[str, Any]) -> None:
        self.after = {f"{s}/{name}": value[0] for s, tree in kept.items() for name, value in tree.items()}


def _belongs(key: str) -> str:
    """To what a tensor of a question belongs: the model, or a strand."""
    return "model" if key in ("model", "buffers") else key.partition("/")[0]
