"""The networks have as many parameters as the papers' or as the published ones they are made from."""

import re
from pathlib import Path

import pytest

from fedbraid.models import build

TWEETS, PLAYS, NEWS = 3000, 80, 10_000
STEM = 64 * 3 * (7 * 7 - 3 * 3)  # what a 3x3 stem saves over ImageNet's 7x7


def classes_fewer(features, classes):
    """What a head of so many classes saves over ImageNet's."""
    return (1000 - classes) * (features + 1)


def lstm_parameters(inputs, hidden, layers):
    each = [4 * hidden * (width + hidden) + 2 * 4 * hidden for width in [inputs] + [hidden] * (layers - 1)]
    return sum(each)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        ("logistic", (60,), 10, {}, 610),
        ("perceptron", (60,), 5, {}, 305),
        ("mlp", (1, 8, 8), 10, {}, 64 * 64 + 64 + 64 * 10 + 10),
        ("lenet", (3, 32, 32), 10, {}, 62_006),
        ("lenet", (1, 28, 28), 10, {}, 62_006 - 2 * 6 * 25 - (400 - 256) * 120),
        ("lenet", (3, 32, 32), 10, {"projection": 256}, 92_626),
        ("cnn", (3, 32, 32), 10, {}, 797_962),
        ("cnn", (3, 32, 32), 100, {}, 815_332),
        ("fedavg-cnn", (1, 28, 28), 10, {}, 1_663_370),
        (
            "tiny-cnn",
            (3, 64, 64),
            200,
            {},
            (3 * 9 * 64 + 64)  # convolutions
            + 2 * (64 * 9 * 64 + 64)
            + 3 * 2 * 64  # scale and shift of each GroupNorm
            + (64 * 8 * 8 * 512 + 512)
            + (512 * 384 + 384)
            + (384 * 200 + 200),
        ),
        ("resnet18", (3, 32, 32), 1000, {}, 11_689_512 - STEM),
        ("resnet18", (3, 64, 64), 200, {"norm": "batch"}, 11_689_512 - STEM - classes_fewer(512, 200)),
        ("resnet20", (3, 32, 32), 10, {}, 269_722),
        ("resnet50", (3, 32, 32), 1000, {}, 25_557_032 - STEM),
        ("resnet50", (3, 32, 32), 100, {"norm": "batch"}, 25_557_032 - STEM - classes_fewer(2048, 100)),
        ("vit-small", (3, 224, 224), 1000, {}, 22_050_664),
        ("vit-tiny", (3, 224, 224), 1000, {"patch": 16}, 5_717_416),
    ],
)
def test_images_and_numbers(name, shape, classes, options, count):
    assert parameters(build(name, shape, classes, **options)) == count


@pytest.mark.parametrize(
    ("name", "tokens", "length", "classes", "options", "count"),
    [
        ("lstm", TWEETS, 25, 2, {}, TWEETS * 300 + lstm_parameters(300, 256, 2) + 257 * 2),
        ("lstm", PLAYS, 80, 80, {"embedding": 8, "hidden": 100}, PLAYS * 8 + lstm_parameters(8, 100, 2) + 101 * 80),
        ("textcnn", NEWS, 50, 4, {}, NEWS * 32 + sum(100 * (32 * width + 1) for width in (3, 4, 5)) + 301 * 4),
    ],
)
def test_texts(name, tokens, length, classes, options, count):
    vocabulary = [str(k) for k in range(tokens)]
    assert parameters(build(name, (length,), classes, tokens=vocabulary, **options)) == count


def rows():
    """(network, shape, classes, parameters) of the rows for images and numbers in docs/models.md."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    for name, shape, classes, count in re.findall(
        r"^\| `([\w-]+)` \|.*\| ([\d×]+), (\d+) classes \| ([\d,]+) \|$", text, re.M
    ):
        yield name, tuple(map(int, shape.split("×"))), int(classes), int(count.replace(",", ""))


def test_the_documented_counts_are_right():
    told = list(rows())
    assert len(told) == 12
    for name, shape, classes, count in told:
        assert parameters(build(name, shape, classes)) == count, name


def parameters(network):
    return sum(p.numel() for p in network.parameters())
