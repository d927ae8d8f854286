"""One thread and no surprises: what every test starts from."""

from importlib.util import find_spec

import pytest
import torch

torch.set_num_threads(1)

if find_spec("hypothesis"):  # machines with a GPU may lack it, and the tests that run there do not need it
    from hypothesis import settings

    settings.register_profile("fedbraid", deadline=None, max_examples=50, derandomize=True)
    settings.load_profile("fedbraid")


@pytest.fixture(autouse=True)
def _same_torch_randomness() -> None:
    torch.manual_seed(0)
