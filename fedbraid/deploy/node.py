"""The client's side of a federation: answer the server's messages with training on local data.

A `Node` holds no state of its own, so that a fresh process may answer every message. Everything that must survive a
crash is in its home folder (`client_home`). The invariant that keeps both sides in step: each question names the
message whose answer the server counted last, and training starts from the client state after that message. A lost
answer, a server that resumes from a checkpoint and a client killed at any instant therefore never let them diverge.
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
from fedbraid.deploy.client_data import ClientData, ClientDataSource
from fedbraid.deploy.client_draws import own_seed
from fedbraid.deploy.client_home import ClientHome, MessageRef
from fedbraid.deploy.messages import Message, MessageRefused, UnknownRun, check_finite, check_tensors, digest, read
from fedbraid.deploy.scores import COUNTED, Score, asked
from fedbraid.deploy.secure_policy import MODEL, hidden
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
"""Bytes of a message."""


class Node:
    """A client. `data` are its samples, `own` the strands and `network` the network beyond FedBraid's that it knows.

    With an `identity` it signs its keys of secure sums, and takes part in those only where everybody does. A `secure`
    one takes part only where the server learns models as sums over clients.
    """

    def __init__(
        self,
        home: Path,
        name: str,
        data: ClientDataSource,
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

    def answer(self, message: bytes) -> bytes:
        """The answer to a message. Whatever goes wrong is answered with a refusal and its reason."""
        run, round, unknown_run = "", -1, False
        try:
            opened = read(message, self.most)
            run, round = opened.run, opened.round
            if opened.kind not in self._answers:
                raise MessageRefused(f"nothing is known of messages of kind {opened.kind[:40]!r}")
            home = ClientHome(self.home, run)
            with home.locked():
                return self._answers[opened.kind](self, home, message, opened)
        except (MessageRefused, UserError) as no:
            log.warning("%s refused a message: %s", self.name, no)
            reason, unknown_run = no.told if isinstance(no, OwnMatter) else str(no), isinstance(no, UnknownRun)
        except Exception as error:
            log.exception("%s could not answer a message", self.name)
            reason = f"it failed with {type(error).__name__}; its own log says more"
        payload = {"to": digest(message), "reason": reason, "stranger": unknown_run}
        return Message("refusal", run, round, payload).to_bytes()

    def _hello(self, home: ClientHome, content: bytes, message: Message) -> bytes:
        """Finds out whether everything fits before there is anything to do."""
        context = self._context(message)
        payload = message.payload.get("code")
        for name, code in context.own_code.items():
            if isinstance(payload, dict) and payload.get(name, code) != code:
                log.warning(
                    "the code of %s here is not the server's; clients with different code train differently", name
                )
        more = [name for name in context.held.dataset.features if name not in context.dataset.features]
        if more:
            log.info("the federation has no columns %s; they are not trained on", ", ".join(more))
        home.keep_hello(content)
        payload = {
            "to": digest(content),
            "samples": int(context.clients.sizes[0]),
            COUNTED["test"]: len(context.held.tests),
        }
        if context.config.evaluate.validation:
            payload[COUNTED["validation"]] = len(context.validation)
        return Message("answer", message.run, message.round, payload).to_bytes()

    def _work(self, home: ClientHome, content: bytes, message: Message) -> bytes:
        """A probe, or training."""
        summed = "sum" in message.payload
        at = MessageRef(message.round, digest(message.question.to_bytes() if summed else content))
        saved = home.answer(at) or self._worked(home, message, at)
        if not summed:
            return saved
        from fedbraid.deploy.masking_steps import LocalIdentity, create_advert

        answer = read(saved, self.most)
        advert = create_advert(home, LocalIdentity(self.name, self.identity), message, message.kind, at)
        return replace(answer, payload={**answer.payload, "to": digest(content), **advert}).to_bytes()

    def _worked(self, home: ClientHome, message: Message, at: MessageRef) -> bytes:
        counted = MessageRef.read(message.payload.get("counted"))
        context = self._context(self._hello_payload(home))
        if not 0 <= message.round < context.config.rounds:
            raise MessageRefused(f"it asks for round {message.round + 1} of a run of {context.config.rounds}")
        question = self._question(home, message, context)
        kept = _Kept(_before(home, counted, context))
        with one_thread():
            replies = context.engine(message, kept).run(question)
        uploads = {key: value[0] for key, value in replies.uploads.items()}
        if message.kind == "probe":
            home.keep_probe(at, message.question.to_bytes())
        elif context.model.frozen is not None:
            uploads["model"] = uploads["model"][~context.model.frozen]
        hides = {key: value for key, value in uploads.items() if key in context.hidden}
        shows = {key: value for key, value in uploads.items() if key not in hides}
        if hides and "sum" not in message.payload:
            raise MessageRefused("it asks for numbers that are to be sent masked only")
        check_finite(hides)  # masked, nobody else can see it
        payload = {"to": at.digest, "forward": replies.work.forward, "backward": replies.work.backward}
        answer = Message("answer", message.run, message.round, payload, shows).to_bytes()
        home.tidy(message.round, counted)
        if kept.after:
            home.keep_state(at, kept.after)  # before the answer leaves
        if hides:
            home.keep_hidden(at, hides)
        home.keep_answer(at, answer)
        return answer

    def _sum(self, home: ClientHome, content: bytes, message: Message) -> bytes:
        """A step of a secure sum."""
        from fedbraid.deploy.masking_steps import STEPS, LocalIdentity

        self._hello_payload(home)
        answer = STEPS[message.kind](home, LocalIdentity(self.name, self.identity), message)
        return replace(answer, payload={**answer.payload, "to": digest(content)}).to_bytes()

    def _evaluate(self, home: ClientHome, content: bytes, message: Message) -> bytes:
        """Test a model on samples of the client's own that it does not train on."""
        context = self._context(self._hello_payload(home))
        check_tensors(message.tensors, context.model_like)
        here = {key: value.to(context.setup.w.device) for key, value in message.tensors.items()}
        payload: dict[str, Any] = {"to": digest(content)}
        for part in asked(message):
            samples = context.tests() if part == "test" else context.validation
            if not len(samples):
                raise MessageRefused(f"it has no {part} samples")
            with one_thread():
                metrics, correct = evaluate(context.model, here["model"], here["buffers"], samples)
            hits = None if metrics["accuracy"] is None else int(correct.sum())
            payload |= Score(len(samples), metrics["loss"] * len(samples), hits).payload(part)
        return Message("answer", message.run, message.round, payload).to_bytes()

    _answers: dict[str, Callable[[Node, ClientHome, bytes, Message], bytes]] = {
        "hello": _hello,
        "probe": _work,
        "train": _work,
        "evaluate": _evaluate,
        "advert": _sum,
        "share": _sum,
        "mask": _sum,
        "reveal": _sum,
    }

    def _hello_payload(self, home: ClientHome) -> Message:
        """Return the server's hello message, which is on disk."""
        content = home.hello()
        if content is None:
            raise UnknownRun("it does not know this run")
        return read(content, self.most)

    def _context(self, hello: Message) -> ClientContext:
        """Everything that training needs, from what the server told and what the client holds."""
        settings, facts = hello.payload.get("settings"), hello.payload.get("facts")
        if not isinstance(settings, dict) or not isinstance(facts, dict):
            raise MessageRefused("it does not say what is to be done")
        network = settings.get("model")
        if isinstance(network, dict) and (files := models.FILES & network.keys()):
            raise MessageRefused(f"model.{min(files)} names a file of this machine; a server may not have any opened")
        config = from_dict(settings)
        config = replace(config, engine=replace(config.engine, device=self.device))
        try:
            held = self.data.load()
        except UserError as error:
            raise OwnMatter(str(error), "its data cannot be read") from error
        named = self.network is not None and models.name_of(self.network) == config.model.name
        objects = UserObjects(model=self.network if named else None, strands=tuple(self.own))
        context = _context(config, Facts.read(facts), hello, held, objects)
        if self.secure and not context.hidden >= MODEL:
            raise MessageRefused("it takes part only where the server learns models as sums (serve --secure)")
        return context

    def _question(self, home: ClientHome, message: Message, context: ClientContext) -> Job:
        """The job that a message asks for; what it need not say again is in the probe's message."""
        tensors, already = dict(message.tensors), message.payload.get("already", [])
        if already:
            after = MessageRef.read(message.payload.get("after"))
            probe = home.probe(after) if after else None
            if probe is None:
                raise MessageRefused("it goes on from a question that was not asked here")
            before = read(probe, self.most).tensors
            tensors = {key: t for key, t in before.items() if _belongs(key) in already} | tensors
        check_finite(tensors)
        check_tensors({key: tensors[key] for key in context.model_like if key in tensors}, context.model_like)
        device = context.setup.w.device
        sent: dict[str, Tree] = {}
        for key, tensor in tensors.items():
            if key not in context.model_like:
                strand, _, name = key.partition("/")
                sent.setdefault(strand, {})[name] = tensor.to(device)
        sizes = torch.as_tensor(context.clients.sizes).to(context.setup.w)
        seed = message.count("seed")
        return Job(
            kind="probe" if message.kind == "probe" else "train",
            round=message.round,
            cohort=Cohort(np.array([context.number]), sizes),
            model=tensors["model"].to(device),
            buffers=tensors["buffers"].to(device),
            sent=dict(sent),
            lr=message.number("lr"),
            seed=own_seed(home.secret(), seed) if context.hidden else seed,
        )


@dataclass(frozen=True, eq=False)
class ClientContext:
    """Everything that a client trains and tests with."""

    config: Config
    held: ClientData
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
        """Return the client state of the strands before the first round."""
        each = {s.name: s.init_client(self.setup) for s in self.job.chain}
        return {strand: tree for strand, tree in each.items() if tree}

    def engine(self, message: Message, kept: _Kept) -> Local:
        """One client by itself; what depends on the others is told with each question."""
        return Local(
            self.job,
            self.setup,
            self.clients,
            self.config.local,
            kept,
            "loop",
            workers=1,
            population_mean=message.number("mean", 1),
            least_width=message.count("width", 1),
            secret=secrets.randbits(64),  # anew for every answer: the same noise twice could be taken off, too
        )


def _context(config: Config, facts: Facts, hello: Message, held: ClientData, objects: UserObjects) -> ClientContext:
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
    model = network_of(config, chain, dataset, objects.model, holds_frozen=False)
    setup = setup_of(config, model, dataset, clients, hello.count("population", 1))
    if hello.payload.get("network") != setup.layout.told:
        raise MessageRefused(f"the parameters of its network {config.model.name!r} have other names or shapes here")
    check_tensors(hello.tensors, {"model": setup.w, "buffers": setup.buffers})
    initial = {key: value.to(device) for key, value in hello.tensors.items()}
    setup = replace(setup, w=initial["model"], buffers=initial["buffers"])
    hides = hidden(chain) if hello.payload.get("secure") is True else frozenset[str]()
    job = LocalJob(chain, model, optimizer_of(config), dataset.task)
    return ClientContext(config, held, dataset, clients, validation, setup, job, hides)


def _before(home: ClientHome, counted: MessageRef | None, context: ClientContext) -> dict[str, Tree]:
    """Return the client state of the strands after the message whose answer counted last."""
    blank = context.blank
    if counted is None or not blank:
        return blank
    state = home.state(counted)
    if state is None:
        raise MessageRefused(f"what it kept after round {counted.round + 1} is not here any more")
    due = {f"{strand}/{name}": value for strand, tree in blank.items() for name, value in tree.items()}
    check_tensors(state, due)
    device = context.setup.w.device
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
