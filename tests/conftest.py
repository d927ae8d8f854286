"""One thread and no surprises: what every test starts from."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fedbraid", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("fedbraid")


@pytest.fixture(autouse=True)
def _same_torch_randomness() -> None:
    torch.manual_seed(0)
