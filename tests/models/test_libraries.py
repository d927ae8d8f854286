"""Networks of other libraries by name, weights from local files, and LoRA adapters."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import advanced, apart, federation, held, toy
from safetensors.torch import save_file
from torch import nn

from fedbraid import models
from fedbraid.data.dataset import Dataset, Split
from fedbraid.errors import UserError
from fedbraid.models.external import Logits

BERT = {
    "name": "transformers:bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16, "max_position_embeddings": 8,
}  # fmt: skip


def texts():
    rng = np.random.default_rng(0)
    dataset, partition = toy((4, 9, 6))
    splits = (Split(rng.integers(0, 11, (len(s.y), 6)), s.y) for s in (dataset.train, dataset.test))
    return Dataset("words", *splits, 3, "classification", tokens=("", *"abcdefghij")), partition


class Small(nn.Module):
    """What a stand-in for a library makes."""

    def __init__(self, num_classes, channels=2):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(channels, 3, 3), nn.Linear(3, num_classes)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


@pytest.fixture
def stand_ins(monkeypatch):
    """torchvision and timm as far as they are used: neither can be installed beside every torch."""
    asked = []

    def get_model(name, *, weights, num_classes, **options):
        asked.append(("torchvision", name, weights, options))
        return Small(num_classes)

    def create_model(name, *, pretrained, num_classes, in_chans, **options):
        asked.append(("timm", name, pretrained, options))
        return Small(num_classes, in_chans)

    vision = SimpleNamespace(get_model=get_model)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=vision))
    monkeypatch.setitem(sys.modules, "torchvision.models", vision)
    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    return asked


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_network_by_name_has_the_classes_and_weights_of_the_run(library, stand_ins):
    images = toy((4, 6), (2, 8, 8))
    made = federation(model={"name": f"{library}:resnet18", "drop": 0.5}, data=images, engine={"kind": "loop"})
    assert stand_ins[-1] == (library, "resnet18", None if library == "torchvision" else False, {"drop": 0.5})
    assert made.setup.w.numel() == sum(p.numel() for p in Small(3).parameters())
    assert apart(held(advanced(made)), held(advanced(federation(
        model={"name": f"{library}:resnet18", "drop": 0.5}, data=images, engine={"kind": "loop"}
    )))) == 0  # fmt: skip


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_weights_come_from_a_local_file_but_for_a_head_of_other_classes(suffix, stand_ins, tmp_path):
    torch.manual_seed(3)
    pretrained, file = Small(10).state_dict(), tmp_path / f"weights.{suffix}"
    save_file(pretrained, file) if suffix == "safetensors" else torch.save(pretrained, file)
    network = models.build("timm:resnet18", (2, 8, 8), 3, weights=str(file), train="head")
    assert torch.equal(network.conv.weight, pretrained["conv.weight"])
    assert [name for name, p in network.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]
    del pretrained["conv.bias"]
    torch.save(pretrained, tmp_path / "less.pt")
    with pytest.raises(UserError, match=r"has no 'conv.bias' of shape \(3,\)"):
        models.build("timm:resnet18", (2, 8, 8), 3, weights=str(tmp_path / "less.pt"))
    with pytest.raises(UserError, match="there is no file"):
        models.build("timm:resnet18", (2, 8, 8), 3, weights="nowhere.pt")


def test_a_missing_library_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match="model timm:resnet18 needs timm, which is not installed; pip install timm"):
        models.build("timm:resnet18", (3, 8, 8), 3)


def test_wrong_names_and_samples_are_refused(stand_ins):
    with pytest.raises(UserError, match="networks of timm take images"):
        models.build("timm:resnet18", (8,), 3)
    with pytest.raises(UserError, match=r"model\.train is one of all, head, not 'some'"):
        models.build("timm:resnet18", (3, 8, 8), 3, train="some")
    with pytest.raises(UserError, match="no model is called 'tim:resnet'"):
        models.build("tim:resnet", (3, 8, 8), 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestTransformers:
    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("transformers")
        pytest.importorskip("peft")

    def test_bert_with_dropout_trains_alike_in_stack_and_loop(self):
        stack, loop = (advanced(federation(model=BERT, data=texts(), engine={"kind": k}), 2) for k in ("stack", "loop"))
        assert (stack.engine.kind, loop.engine.kind) == ("stack", "loop")
        assert apart(held(stack), held(loop)) <= 1e-9

    def test_padding_takes_no_part(self):
        network = models.build(BERT["name"], (6,), 3, tokens=("", *"abc"), **{k: BERT[k] for k in BERT if k != "name"})
        network.eval()
        x = torch.tensor([[1, 2, 0, 0, 0, 0]])
        assert isinstance(network, Logits)
        torch.testing.assert_close(network(x), network(x[:, :2]), rtol=0, atol=1e-6)

    def test_lora_trains_and_sends_adapters_and_head_alone(self):
        lora, whole = (federation("asd+disco", model=BERT | {"lora": r}, data=texts()) for r in (2, 0))
        names = lora.setup.layout.names
        assert all("lora_" in name or "classifier" in name for name in names)
        assert {name for name in names if "lora_" in name}
        assert lora.setup.w.numel() < whole.setup.w.numel() / 5
        line, other = lora.advance(), whole.advance()
        saved = 8 * 3 * (whole.setup.w.numel() - lora.setup.w.numel())
        assert other["bytes_up"] - line["bytes_up"] == other["bytes_down"] - line["bytes_down"] == saved
        assert line["bytes_up"] < other["bytes_up"] / 5
        loop = federation("asd+disco", model=BERT | {"lora": 2}, data=texts(), engine={"kind": "loop"})
        loop.advance()
        assert apart(held(lora), held(loop)) <= 1e-9

    def test_a_folder_of_weights_is_loaded_and_nothing_else_is_looked_for(self, tmp_path):
        small = {k: BERT[k] for k in BERT if k != "name"}
        first = models.build(BERT["name"], (6,), 3, tokens=("", *"abc"), **small)
        first.network.save_pretrained(tmp_path / "bert")
        again = models.build(f"transformers:{tmp_path / 'bert'}", (6,), 3, tokens=("", *"abc"))
        assert torch.equal(again.network.classifier.weight, first.network.classifier.weight)
        with pytest.raises(UserError, match="tokenize them by the network's own tokenizer"):
            models.build(f"transformers:{tmp_path / 'bert'}", (6,), 3, tokens=("", *"abcd"))
        with pytest.raises(UserError, match="transformers does not make 'nobody/nothing'"):
            models.build("transformers:nobody/nothing", (6,), 3, tokens=("", "a"))
