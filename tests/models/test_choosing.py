"""Networks by name: which fit which samples, and one sentence for every mistake."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_networks import TOKENS

from fedbraid.errors import UserError
from fedbraid.models import build, describe, fitting, names

IMAGE, DIGIT, ROW = (3, 32, 32), (1, 8, 8), (60,)
SMALL_OPTIONS = {"vit-tiny": {"depth": 1}, "vit-small": {"depth": 1}, "lstm": {"embedding": 4, "hidden": 3}}
QUICK = [name for name in names() if name not in ("resnet18", "resnet50")]  # tens of MB each


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4).map(tuple), st.sampled_from([(), TOKENS]))
def test_what_fits_is_built_and_what_does_not_is_refused(shape, tokens):
    x = torch.ones(2, *shape, dtype=torch.int64 if tokens else torch.float32)
    fits = fitting(shape, tokens)
    for name in QUICK:
        options = SMALL_OPTIONS.get(name, {})
        if name in fits:
            assert build(name, shape, 3, tokens=tokens, **options)(x).logits.shape == (2, 3)
        else:
            with pytest.raises(UserError, match=f"model '{name}' needs .* models that fit: "):
                build(name, shape, 3, tokens=tokens, **options)


@pytest.mark.parametrize("name", ["lenet", "cnn"])
@pytest.mark.parametrize("shape", [DIGIT, (3, 15, 32), (3, 32, 15), ROW, (32, 32)])
def test_inputs_too_small_are_refused_naming_models_that_fit(name, shape):
    with pytest.raises(UserError, match=r"at least 16x16 .* models that fit: logistic, mlp"):
        build(name, shape, 10)


def test_which_models_take_what():
    numbers = ["logistic", "mlp", "perceptron"]
    texts = ["textcnn", "lstm"]
    assert fitting(ROW) == numbers
    assert fitting((16, 16, 16, 16)) == numbers
    assert fitting((1, 16, 16)) == [name for name in names() if name not in texts]
    assert {"lenet", "cnn"} == set(fitting((1, 16, 16))) - set(fitting((1, 15, 16)))
    assert {"tiny-cnn"} == set(fitting((1, 8, 8))) - set(fitting((1, 7, 8)))
    assert {"fedavg-cnn"} == set(fitting((1, 4, 4))) - set(fitting((1, 4, 3)))
    assert fitting((5,), TOKENS) == texts
    assert fitting((4,), TOKENS) == ["lstm"]
    assert fitting((5, 5), TOKENS) == []


def test_texts_and_images_are_told_apart():
    with pytest.raises(UserError, match=r"'lenet' needs images .*, not texts of shape \(25,\); models that fit: textc"):
        build("lenet", (25,), 4, tokens=TOKENS)
    with pytest.raises(UserError, match=r"'mlp' needs samples that are numbers, not texts of shape \(25,\)"):
        build("mlp", (25,), 4, tokens=TOKENS)
    with pytest.raises(UserError, match=r"'lstm' needs texts, not samples of shape \(3, 32, 32\); models that fit: l"):
        build("lstm", IMAGE, 4)
    with pytest.raises(UserError, match=r"'textcnn' needs texts of at least 5 tokens, .* models that fit: none"):
        build("textcnn", (5, 5), 4, tokens=TOKENS)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("mlp", {"width": 3}, "known: hidden"),
        ("logistic", {"hidden": (3,)}, "takes no options"),
        ("perceptron", {"hidden": (3,)}, "known: sigmoid"),
        ("perceptron", {"sigmoid": 0}, "sigmoid must be true or false"),
        *(("mlp", {"hidden": hidden}, "hidden") for hidden in (64, "64", [], [0], [3.5], [True])),
        (
            "mlp",
            {"hidden": [64, 10**22]},
            "each width in hidden must be at most 1,000,000, not 10000000000000000000000",
        ),
        *((name, {"projection": -1}, "projection must be a whole number") for name in ("mlp", "cnn", "resnet20")),
        ("resnet20", {"norm": "layer"}, "no norm is called 'layer'; .*known: batch, group"),
        ("resnet20", {"groups": 3}, "groups=3 does not divide the 16 channels"),
        ("resnet18", {"groups": 0}, "groups must be"),
        ("vit-tiny", {"patch": 5}, r"patch=5 does not divide images of 32x32 pixels; possible: 1, 2, 4, 8, 16, 32"),
        ("vit-tiny", {"patch": 0}, "patch must be"),
        ("vit-small", {"depth": 0}, "depth must be"),
        ("vit-small", {"tokens_per_side": 3}, "known: depth, patch, projection"),
    ],
)
def test_options_for_images(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        build(name, IMAGE, 10, **options)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("textcnn", {"embedding": 0}, "embedding must be"),
        ("textcnn", {"filters": "many"}, "filters must be"),
        ("lstm", {"hidden": 2.5}, "hidden must be"),
        ("lstm", {"hidden": 10**22}, "hidden must be at most 1,000,000"),
        ("lstm", {"embedding": 10**22}, "embedding must be at most 1,000,000"),
        ("textcnn", {"filters": 10**22}, "filters must be at most 1,000,000"),
        ("lstm", {"layers": 0}, "layers must be"),
        ("lstm", {"frozen": "yes"}, "frozen must be true or false"),
        ("lstm", {"projection": None}, "projection must be"),
    ],
)
def test_options_for_texts(name, options, sentence):
    with pytest.raises(UserError, match=sentence):
        build(name, (25,), 2, tokens=TOKENS, **options)


def test_mistakes_are_answered_with_what_is_known():
    with pytest.raises(UserError, match="did you mean 'lenet'"):
        build("lenett", IMAGE, 10)
    with pytest.raises(UserError, match="classes must be"):
        build("cnn", IMAGE, 0)
    with pytest.raises(UserError, match="shape"):
        build("logistic", (0,), 10)


def test_the_registry_describes_every_model_it_builds():
    options = {entry.name: entry.options for entry in describe()}
    assert list(options) == names()
    assert options["mlp"] == {"hidden": (64,), "projection": 0}
    assert set(options["lstm"]) == {"embedding", "hidden", "layers", "frozen", "vectors", "projection"}
    assert all(entry.summary for entry in describe())
