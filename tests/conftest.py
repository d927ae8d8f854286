"""One thread and no surprises: what every test starts from."""

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # in processes that tests start, too

import pytest
import torch

torch.set_num_threads(1)

if find_spec("hypothesis"):  # machines with a GPU may lack it, and the tests that run there do not need it
    from hypothesis import settings

    settings.register_profile("fedbraid", deadline=None, max_examples=50, derandomize=True)
    settings.load_profile("fedbraid")


LONGEST = (
    "test_check",
    "test_flower_parity",  # this and the next two start many processes, and are better not beside each other
    "test_flower_messages",
    "test_cluster_ray",
    "test_docs",
    "test_compiled",
    "test_miniatures",
    "test_secure_wire",
    "test_server",
    "test_together",
    "test_cli",
    "test_study_cli",
    "test_parity",
    "test_node",
    "test_benchmark",
    "test_composition",
)
"""Modules that take long. A module is one process's work (see the Makefile): these begin first, so that none is left
alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


REAL_DATA = [Path(p) for p in (os.environ.get("FEDBRAID_DATA"), Path(__file__).parents[2] / "shared" / "data") if p]
"""Where real data sets may lie. Tests that want one are skipped where it is not."""


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """The directory that holds `file` of a real data set."""

    def directory(file: str) -> Path:
        for place in REAL_DATA:
            if (place / file).exists():
                return place
        pytest.skip(f"no real {file} here; FEDBRAID_DATA may name a directory that has it")

    return directory


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or left in the user's own cache."""
    monkeypatch.setenv("FEDBRAID_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _same_torch_randomness() -> None:
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_initialized():  # before that, torch.manual_seed would keep a trace of every test for later
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def not_rendered() -> Iterator[pytest.MonkeyPatch]:
    """Figures are made, but no pictures of them: rendering takes most of a command's time. See tests/report for it."""
    from fedbraid.report import plots

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "png", lambda figure: b"made, not rendered")
        yield patch


@pytest.fixture
def rendered(not_rendered: pytest.MonkeyPatch) -> None:
    """For a test among those whose figures are not."""
    not_rendered.undo()
