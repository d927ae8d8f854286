"""The commands of a real federation: keys for all, the server, and a client."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fedbraid.cli.shared_options import (
    DataDir,
    Device,
    Json,
    Method,
    Net,
    Out,
    Own,
    Resume,
    Settings,
    begun,
    err,
    interruptible,
    new_run,
    out,
    print_json,
    refuse_to_guess,
)
from fedbraid.errors import UserError

if TYPE_CHECKING:
    from fedbraid.deploy.process_settings import NodeSettings

FLOWER = "1.41."
"""The versions of flwr that the adapter was written for; its interfaces move."""

PORT = 8000

HELD = "data", "partition", "seed"
"""Settings that say which data a client has."""

FILES = {"path", "test"}
"""Options of data sets that name files."""

Insecure = Annotated[
    bool, typer.Option("--insecure", help="Without TLS and keys: anyone can listen, and pass for a client.")
]


def keys(
    place: Annotated[Path, typer.Argument(metavar="OUT", help="Where the folders are made, one for each party.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address under which clients reach the server; may be given many times."),
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option(help="A client's name; may be given many times. The order gives their numbers.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the certificates and keys of a federation, or add clients to one.

    OUT/server is for the server, OUT/NAME for each client: hand them out by a way you trust. OUT/authority signs the
    server's certificate and stays with you. Nothing is ever overwritten.
    """
    _needs_flower()
    from fedbraid.deploy.keys import make_keys

    if not client and not host:
        raise UserError("name the clients with --client, and the server with --host")
    made = make_keys(place, host or [], client or [])
    if as_json:
        print_json({"folders": [str(folder) for folder in made]})
        return
    for folder in made:
        files = ", ".join(sorted(file.name for file in folder.iterdir()))
        out.print(f"{folder}: {files}", soft_wrap=True, highlight=False, markup=False)


ServerKeys = Annotated[Path | None, typer.Option("--keys", help="The server's folder that `fedbraid keys` made.")]
ClientNames = Annotated[
    list[str] | None, typer.Option(help="With --insecure: a client's name; may be given many times.")
]
ClientCount = Annotated[int, typer.Option(min=0, help="With --insecure: so many clients, called client-0, client-1, …")]
Quorum = Annotated[int, typer.Option(min=0, help="A round counts with so many answers.", show_default="everybody")]
SecureSums = Annotated[
    bool,
    typer.Option("--secure", help="Learn models, and what strands only add up, as sums over clients and no other way."),
]


def serve(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file.")] = None,
    key_folder: ServerKeys = None,
    client: ClientNames = None,
    clients: ClientCount = 0,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 = all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    method: Method = None,
    settings: Settings = None,
    place: Out = None,
    resume: Resume = False,
    min_clients: Quorum = 0,
    seconds: Annotated[float, typer.Option(min=1, help="How long a client has to answer.")] = 600,
    secure: SecureSums = False,
    max_samples: Annotated[int, typer.Option(min=1, help="Samples that one client can have.")] = 10**9,
    max_share: Annotated[float, typer.Option(help="Share of all training samples that one client can have.")] = 1.0,
    on_outlier: Annotated[
        str, typer.Option(help="What to do with an update much longer than the others: warn, clip or drop.")
    ] = "warn",
    outlier_factor: Annotated[float, typer.Option(help="Times the median's length that are much longer.")] = 10.0,
    most: Annotated[int, typer.Option("--max-answer", min=1, help="MB that an answer may have.")] = 1024,
    device: Device = None,
    data_dir: DataDir = None,
    strand: Own = None,
    model: Net = None,
    insecure: Insecure = False,
    as_json: Json = False,
) -> None:
    """Be the server of a federation of machines that join it with `fedbraid join`.

    The data set of the configuration is what the server tests on; clients train on their own.
    """
    _needs_flower()
    from fedbraid import load, models
    from fedbraid.cli import run_views
    from fedbraid.cli.user_input import resolved
    from fedbraid.config.schema import to_dict
    from fedbraid.deploy.address import Address
    from fedbraid.deploy.federation_run import check_federation
    from fedbraid.deploy.process_settings import ServerSettings
    from fedbraid.deploy.server_process import run_server
    from fedbraid.deploy.update_limits import OnOutlier, UpdateLimits
    from fedbraid.training.user_code import load_network, load_strands

    _check_security(key_folder, insecure, "server")
    limits = UpdateLimits(max_samples, max_share, cast(OnOutlier, on_outlier), outlier_factor)
    roster = _roster(key_folder, client or [], clients)
    refuse_to_guess(place, resume)
    base = begun(place, resume, config)
    network = load_network(model)
    chosen = resolved(config, settings, method=method, device=device, model=network, base=base)
    own = load_strands(strand)
    if network is None:
        models.find_network(chosen.model.name, chosen.model.options)
    where = place or new_run(chosen)
    server_settings = ServerSettings(
        config=to_dict(chosen),
        roster=list(roster),
        out=str(where.resolve()),
        resume=resume,
        min_clients=min_clients,
        seconds=seconds,
        secure=secure,
        limits=asdict(limits),
        most=most * 10**6,
        data_dir=str(data_dir.resolve()) if data_dir else None,
        strands=[_absolute(place) for place in strand or ()],
        network=None if model is None else _absolute(model),
    )
    check_federation(
        chosen,
        roster,
        out=where,
        resume=resume,
        min_clients=min_clients,
        data_dir=data_dir,
        own=own,
        network=network,
        secure=secure,
    )
    if insecure:
        _warn("without TLS: whoever reaches this port can read what is sent, and take part under any client's name")
    with interruptible(where):
        run_server(server_settings, Address(host, port), key_folder.resolve() if key_folder else None, _say)
    if as_json:
        summary = json.loads((where / "summary.json").read_text(encoding="utf-8"))
        print_json({"directory": str(where), "summary": summary})
    else:
        finished = load(where, model=network, own=own, data_dir=data_dir)
        run_views.summary(out, finished, where)


def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the server listens.")],
    data: Annotated[
        str,
        typer.Option(
            help="This client's own data: a .csv or .parquet table (--set data.label=COLUMN says what to predict), an "
            ".npz file, a folder of images by class, or a set's name."
        ),
    ],
    home: Annotated[Path, typer.Option(help="Where this client keeps what it must not lose; not shared with another.")],
    key_folder: Annotated[
        Path | None, typer.Option("--keys", help="The client's folder that `fedbraid keys` made.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="This client's name.", show_default="as its public key says")] = None,
    part: Annotated[
        int | None, typer.Option(min=0, help="For trials: this client of the data's partition, not all of the data.")
    ] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="Take part only where the server learns models as sums over clients.")
    ] = False,
    settings: Settings = None,
    device: Device = None,
    data_dir: DataDir = None,
    strand: Own = None,
    model: Net = None,
    insecure: Insecure = False,
) -> None:
    """Take part in a federation with the data of this machine, until interrupted (Ctrl-C).

    The data stay here. What is sent is what the run's method declares; `fedbraid methods` says what that is. Only the
    code installed here is run. Settings are those of the data, such as --set data.pixels=64.
    """
    _needs_flower()
    from fedbraid.deploy.address import Address
    from fedbraid.deploy.client_process import run_node
    from fedbraid.deploy.process_settings import NodeSettings
    from fedbraid.training.user_code import load_network, load_strands

    _check_security(key_folder, insecure, "client")
    server = Address.parse(address)
    if secure:
        _check_others(key_folder)
    called = _own_name(name, key_folder)
    if insecure:
        _warn("without TLS: whoever is on the way to the server can read what is sent, or pass for the server")
    load_strands(strand)
    load_network(model)
    node = NodeSettings(
        home=str(home.resolve()),
        name=called,
        holds=_holds(data, settings),
        part=part,
        data_dir=str(data_dir.resolve()) if data_dir else None,
        device=device or "auto",
        secure=secure,
        strands=[_absolute(place) for place in strand or ()],
        network=None if model is None else _absolute(model),
    )
    _say(_read_data(node))  # now, so that unreadable data is reported before anybody waits for this client
    try:
        run_node(node, server, key_folder.resolve() if key_folder else None, _say)
    except KeyboardInterrupt:
        _say(f"{called} has left {server}")


def _roster(key_folder: Path | None, named: list[str], numbered: int) -> tuple[str, ...]:
    """The clients' names: those whose keys the server has, or, without keys, `named` ones or so many `numbered`."""
    from fedbraid.deploy.keys import ROSTER, read_roster
    from fedbraid.deploy.names import check_names

    if key_folder is not None:
        if named or numbered:
            raise UserError("the clients are those of the roster in --keys; leave out --client and --clients")
        return tuple(member.name for member in read_roster(key_folder / ROSTER))
    if bool(named) == bool(numbered):
        raise UserError("with --insecure say who the clients are: --client NAME for each, or --clients N")
    return check_names(named or [f"client-{number}" for number in range(numbered)])


def _check_others(key_folder: Path | None) -> None:
    """Refuse a client with secure sums that lacks the other clients' keys, or whose copy of them is damaged."""
    from fedbraid.deploy.keys import ROSTER, read_roster

    if key_folder is None:
        raise UserError("--secure needs --keys: without them a server can pass for the other clients")
    read_roster(key_folder / ROSTER)


def _own_name(name: str | None, key_folder: Path | None) -> str:
    from fedbraid.deploy.keys import read_name
    from fedbraid.deploy.names import check_name

    if name:
        return check_name(name)
    if key_folder is None:
        raise UserError("with --insecure say who you are: --name hospital-a")
    return read_name(key_folder / "node.pub")


def _holds(given: str, settings: list[str] | None) -> dict[str, Any]:
    """Return a client's data settings: the tables data and partition of a configuration, and its seed."""
    from fedbraid.cli.user_input import resolved
    from fedbraid.config.schema import to_dict
    from fedbraid.data import find_dataset

    for setting in settings or ():
        if setting.partition("=")[0].partition(".")[0] not in HELD:
            raise UserError(f"the server says how to train; only {', '.join(HELD)} can be set here, not {setting!r}")
    values = {key: value for key, value in to_dict(resolved(None, settings, data=given)).items() if key in HELD}
    for key in FILES & values["data"].keys():  # Flower's processes run elsewhere
        values["data"][key] = str(Path(values["data"][key]).expanduser().resolve())
    options = {key: value for key, value in values["data"].items() if key != "name"}
    find_dataset(values["data"]["name"], options)
    return values


def _read_data(node: NodeSettings) -> str:
    """Read a client's data and describe it in a line."""
    from fedbraid.deploy.client_data import NamedData

    held = NamedData.of(
        node.holds,
        node.part,
        Path(node.data_dir) if node.data_dir else None,
    ).load()
    dataset, own = held.dataset, held.partition.clients[held.client]
    columns = f"; columns {', '.join(dataset.features)}" if dataset.features else ""
    classes = f"; classes {', '.join(dataset.labels)}" if dataset.labels else ""
    counts = f"{node.name} has {len(own):,} samples to train on and {len(held.tests):,} to test on"
    return f"{counts}: {dataset.source or dataset.name}{columns}{classes}"


def _needs_flower() -> None:
    """Refuse where a federation cannot run: on Windows, and without the version of Flower that the adapter knows."""
    if not find_spec("fcntl"):
        raise UserError(
            "a federation runs on Linux and macOS, since its processes need Unix signals and file modes; on Windows "
            "use WSL or a container (simulation runs here: fedbraid run)"
        )
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise UserError("a federation needs Flower: pip install 'fedbraid[flower]'") from None
    if not found.startswith(FLOWER):
        raise UserError(f"a federation needs Flower {FLOWER}x, not {found}: pip install 'fedbraid[flower]'")


def _check_security(keys: Path | None, insecure: bool, party: str) -> None:
    if keys is None and not insecure:
        raise UserError(
            f"give the {party}'s folder that `fedbraid keys` made with --keys, or --insecure to go without TLS and keys"
        )
    if keys is not None and insecure:
        raise UserError("--keys and --insecure exclude each other")


def _absolute(place: str) -> str:
    """file.py:Class with the whole path: Flower's processes run elsewhere."""
    file, _, name = place.rpartition(":")
    return f"{Path(file).resolve()}:{name}"


def _say(line: str) -> None:
    err.print(line, soft_wrap=True, highlight=False, markup=False)


def _warn(text: str) -> None:
    err.print(f"[bold red]INSECURE[/] {text}", soft_wrap=True, highlight=False)
