"""Networks of other libraries by name: `torchvision:resnet18`, `timm:vit_tiny_patch16_224`, `transformers:bert`.

A library is imported when one of its networks is asked for. Nothing is downloaded: weights come from a local file, a
folder, or the cache of the hub's client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedbraid.config.registry import whole
from fedbraid.errors import UserError, first_line

INSTALL = {
    "torchvision": "install the torchvision that belongs to your torch",
    "timm": "pip install timm",
    "transformers": "pip install 'fedbraid[transformers]'",
    "peft": "pip install 'fedbraid[transformers]'",
}
TRAINED = ("all", "head")


def is_library(name: str) -> bool:
    """Return whether a model's name is that of another library's network."""
    return name.partition(":")[0] in MAKERS and ":" in name


def library_network(
    name: str,
    shape: Sequence[int],
    classes: int,
    *,
    tokens: Sequence[str] = (),
    weights: str | None = None,
    train: str = "all",
    lora: int = 0,
    **options: Any,
) -> nn.Module:
    """Return another library's network for samples of `shape`, with `classes` outputs.

    Args:
        name: `LIBRARY:NAME`. For transformers NAME is a type such as `bert` (random weights, `options` are its
            configuration's), a folder, or a repository of the hub that is in the local cache.
        shape: of a sample; (channels, height, width) or, with `tokens`, (length,).
        classes: number of outputs.
        tokens: vocabulary of a text; 0 is padding.
        weights: a local file (.safetensors, .pt or .pth) of torchvision's or timm's weights; a last layer of another
            shape keeps its random weights.
        train: "all" parameters, or the "head", which is the last fully connected layer.
        lora: rank of LoRA adapters (by peft); only these and the head are trained. 0 for none.
        options: passed on to the library.

    Raises UserError for a missing library, an unknown name or a file that does not fit.
    """
    library, _, which = name.partition(":")
    if train not in TRAINED:
        raise UserError(f"model.train is one of {', '.join(TRAINED)}, not {train!r}")
    try:
        network = MAKERS[library](which, tuple(shape), classes, tokens, options)
    except (UserError, MemoryError):
        raise
    except Exception as error:  # each library has errors of its own
        raise UserError(f"{library} does not make {which!r}: {first_line(error)}") from error
    if weights is not None:
        load_weights(network, Path(weights))
    if whole("lora", lora, 0):
        return Logits(with_lora(network, lora), bool(tokens)) if library == "transformers" else with_lora(network, lora)
    if train == "head":
        freeze_all_but(network, head_of(network))
    return Logits(network, bool(tokens)) if library == "transformers" else network


def head_of(network: nn.Module) -> str:
    """Return the name of the last fully connected layer."""
    names = [name for name, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise UserError("the network has no fully connected layer that could be its head; set model.train=all")
    return str(names[-1])


def freeze_all_but(network: nn.Module, name: str) -> None:
    """Freeze every parameter but those of the layer called `name`."""
    network.requires_grad_(False)
    network.get_submodule(name).requires_grad_(True)


def with_lora(network: nn.Module, rank: int) -> nn.Module:
    """Return the network with LoRA adapters of `rank` (Hu et al., 2022) where peft puts them for its architecture.

    Adapters and the head are trained, everything else is frozen.
    """
    peft = _imported("peft", "model.lora")
    head = head_of(network)
    known = getattr(getattr(network, "config", None), "model_type", None) is not None
    targets = None if known else [n for n, m in network.named_modules() if isinstance(m, nn.Linear) and n != head]
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    adapted: nn.Module = peft.inject_adapter_in_model(config, network)
    for name, parameter in adapted.named_parameters():
        parameter.requires_grad_("lora_" in name or name.startswith(f"{head}."))
    return adapted


def load_weights(network: nn.Module, file: Path) -> None:
    """Load a local file into the network. Only the last layer may have another shape there, and stays as it is."""
    if not file.is_file():
        raise UserError(f"there is no file {file} of weights")
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            read: Mapping[str, Tensor] = load_file(file)
        else:
            read = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(f"{file} cannot be read as weights: {first_line(error)}") from error
    own, head = network.state_dict(), f"{head_of(network)}."
    fitting = {k: v for k, v in read.items() if k in own and own[k].shape == v.shape}
    lost = [k for k in own if k not in fitting and not k.startswith(head) and not k.endswith("num_batches_tracked")]
    if lost:
        raise UserError(f"{file} has no {lost[0]!r} of shape {tuple(own[lost[0]].shape)}, which the network needs")
    network.load_state_dict(fitting, strict=False)


class Logits(nn.Module):
    """A network of transformers as one of tensors: samples in, logits out."""

    def __init__(self, network: nn.Module, is_text: bool) -> None:
        super().__init__()
        self.network, self.is_text = network, is_text

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_text:
            made: Tensor = self.network(x).logits
            return made
        # The mask [B, 1, L, L] is ready made: of a mask [B, L] the library asks whether it is all ones, and a program
        # for all clients cannot branch on values. The first position always takes part, so that no row is empty.
        real = (x != 0) | (torch.arange(x.shape[1], device=x.device) == 0)
        length = x.shape[1]
        made = self.network(input_ids=x, attention_mask=real[:, None, None].expand(-1, 1, length, length)).logits
        return made


def _imported(library: str, what: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        raise UserError(f"{what} needs {library}, which is not installed; {INSTALL[library]}") from error


def _torchvision(name: str, shape: tuple[int, ...], classes: int, tokens: Sequence[str], options: Any) -> nn.Module:
    _check_images("torchvision", shape, tokens)
    module: nn.Module = _imported("torchvision.models", f"model torchvision:{name}").get_model(
        name, weights=None, num_classes=classes, **options
    )
    return module


def _timm(name: str, shape: tuple[int, ...], classes: int, tokens: Sequence[str], options: Any) -> nn.Module:
    _check_images("timm", shape, tokens)
    module: nn.Module = _imported("timm", f"model timm:{name}").create_model(
        name, pretrained=False, num_classes=classes, in_chans=shape[0], **options
    )
    return module


def _check_images(library: str, shape: tuple[int, ...], tokens: Sequence[str]) -> None:
    if tokens or len(shape) != 3:
        raise UserError(f"networks of {library} take images (channels, height, width), not samples of shape {shape}")


def _transformers(name: str, shape: tuple[int, ...], classes: int, tokens: Sequence[str], options: Any) -> nn.Module:
    library = _imported("transformers", f"model transformers:{name}")
    kind = library.AutoModelForSequenceClassification if tokens else library.AutoModelForImageClassification
    if name in library.CONFIG_MAPPING:
        own = {"vocab_size": len(tokens), "pad_token_id": 0} if tokens else _image_options(shape)
        config = library.AutoConfig.for_model(name, num_labels=classes, **(own | options))
        module: nn.Module = kind.from_config(config)
        return module
    module = kind.from_pretrained(
        name, num_labels=classes, local_files_only=True, ignore_mismatched_sizes=True, dtype=torch.float32, **options
    )
    known = getattr(module.config, "vocab_size", None)
    if tokens and known != len(tokens):
        raise UserError(
            f"{name} knows {known} tokens, and the texts have {len(tokens)}; tokenize them by the "
            "network's own tokenizer"
        )
    return module


def _image_options(shape: tuple[int, ...]) -> dict[str, Any]:
    if len(shape) != 3:
        raise UserError(f"transformers' networks take images (channels, height, width) or texts, not shape {shape}")
    return {"num_channels": shape[0], "image_size": shape[1] if shape[1] == shape[2] else shape[1:]}


MAKERS: dict[str, Callable[[str, tuple[int, ...], int, Sequence[str], Any], nn.Module]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}
