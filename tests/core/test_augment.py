"""Images that change: each change against a plain reference, and what the draws are made of."""

import colorsys
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import advanced, apart, federation, held, identical, toy
from PIL import Image

from fedbraid.config.schema import from_dict
from fedbraid.core.augment import PREFIX, Augment
from fedbraid.core.random import stream
from fedbraid.errors import UserError

MEAN = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64).reshape(3, 1, 1)


def images(n=5, channels=3, height=7, width=9):
    return torch.as_tensor(np.random.default_rng(0).integers(0, 256, (n, channels, height, width), dtype=np.uint8))


def drawn(spec, n=5, seed=0):
    draws = spec.draw(stream(seed, "images"), 1, n)
    return {key: torch.as_tensor(value[0]) for key, value in draws.items()}


def apply(spec, x, draws=None):
    return spec.apply(x, drawn(spec, len(x)) if draws is None else draws, MEAN[: x.shape[1]], torch.float64)


@pytest.mark.parametrize("padding", ["zero", "mean", "reflect"])
def test_crop_is_a_window_of_the_padded_image(padding):
    spec, x = Augment(crop=3, padding=padding), images(40)
    draws = drawn(spec, 40)
    shifts = draws[PREFIX + "shift"].numpy()
    for image, (down, right), got in zip(x.numpy(), shifts, apply(spec, x, draws), strict=True):
        sides = ((0, 0), (3, 3), (3, 3))
        if padding == "reflect":
            padded = np.pad(image, sides, mode="reflect")
        elif padding == "zero":
            padded = np.pad(image, sides)
        else:
            fills = [np.pad(channel, 3, constant_values=int(m)) for channel, m in zip(image, MEAN, strict=True)]
            padded = np.stack(fills)
        window = padded[:, 3 + down : 10 + down, 3 + right : 12 + right]
        assert np.array_equal(got.numpy(), window)
    assert {*shifts.flatten()} == {-3, -2, -1, 0, 1, 2, 3}


def test_mirrors():
    x = images()
    yes = torch.ones(5, dtype=torch.bool)
    for spec, flags, want in (
        (Augment(flip=1.0), (~yes, yes), x.flip(3)),
        (Augment(flip_vertical=1.0), (yes, ~yes), x.flip(2)),
        (Augment(flip=1.0, flip_vertical=1.0), (yes, yes), x.flip(2, 3)),
    ):
        draws = drawn(spec)
        assert torch.equal(draws[PREFIX + "flip"], torch.stack(flags, 1))
        assert torch.equal(apply(spec, x, draws), want.double())


@pytest.mark.parametrize("angle", [0, 90, 180, -90])
def test_quarter_turns_are_exact(angle):
    x = images(height=8, width=8)
    turn = torch.tensor([[np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))]]).expand(5, 2)
    got = apply(Augment(rotation=180), x, {PREFIX + "turn": turn})
    assert torch.equal(got, torch.rot90(x, angle // 90, (2, 3)).double())


@pytest.mark.parametrize("angle", [-33.0, 7.5, 15.0, 120.0])
def test_rotation_is_pillows(angle):
    x = images(4, height=32, width=32)
    turn = torch.tensor([[np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))]]).expand(4, 2)
    got = apply(Augment(rotation=180), x, {PREFIX + "turn": turn})
    for image, ours in zip(x, got, strict=True):
        theirs = np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).rotate(angle)).transpose(2, 0, 1)
        assert (ours.numpy() != theirs).mean() < 0.005  # Pillow counts in fixed point, which moves a pixel or two


def test_all_moves_together_are_the_moves_one_after_another():
    x = images(30, height=12, width=12)
    both = Augment(crop=2, flip=0.5, flip_vertical=0.5, rotation=40)
    draws = drawn(both, 30)

    def only(name):
        return {key: value for key, value in draws.items() if key == PREFIX + name}

    step = apply(Augment(crop=2), x, only("shift"))
    step = apply(Augment(flip=0.5), step, only("flip"))
    step = apply(Augment(rotation=40), step, only("turn"))
    assert torch.equal(apply(both, x, draws), step)


def colour(x, **factors):
    """One kind of change with a factor given, on float images."""
    names = ("brightness", "contrast", "saturation", "hue")
    values = [factors.get(name, 0.0 if name == "hue" else 1.0) for name in names]
    spec = Augment(**dict.fromkeys(factors, 0.5))
    draws = {PREFIX + "colour": torch.tensor(values, dtype=torch.float64).expand(len(x), 4)}
    return apply(spec, x, draws)


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.0, 1.4])
def test_brightness_contrast_and_saturation(factor):
    x = images()
    pixels = x.double()
    grey = (torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).reshape(3, 1, 1) * pixels).sum(1, keepdim=True)
    middle = grey.mean((1, 2, 3), keepdim=True)
    for name, base in (("brightness", torch.zeros(())), ("contrast", middle), ("saturation", grey)):
        want = (factor * pixels + (1 - factor) * base).clamp(0, 255)
        assert torch.allclose(colour(x, **{name: factor}), want, atol=1e-9)


@pytest.mark.parametrize("turn", [-0.5, -0.2, 0.0, 0.1, 0.5])
def test_hue_is_that_of_the_colour_circle(turn):
    x = images(2, height=6, width=6)
    x[0, :, 0, 0] = 77  # grey has no hue
    got = colour(x, hue=turn).permute(0, 2, 3, 1).reshape(-1, 3).numpy()
    for (r, g, b), ours in zip(x.permute(0, 2, 3, 1).reshape(-1, 3).tolist(), got, strict=True):
        h, s, v = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
        assert ours / 255 == pytest.approx(colorsys.hsv_to_rgb((h + turn) % 1, s, v), abs=1e-9)


def test_draws_have_the_ranges_that_were_asked_for():
    spec = Augment(crop=4, crop_share=0.25, flip=0.3, rotation=15, brightness=0.2, contrast=1.5, hue=0.1)
    draws = spec.draw(stream(0, "images"), 50, 200)
    shift, turn = draws[PREFIX + "shift"], draws[PREFIX + "turn"]
    assert abs(shift).max() == 4
    assert (shift != 0).any(-1).mean() == pytest.approx(0.25 * 80 / 81, abs=0.02)
    assert draws[PREFIX + "flip"][..., 1].mean() == pytest.approx(0.3, abs=0.02)
    assert not draws[PREFIX + "flip"][..., 0].any()
    angle = np.rad2deg(np.arctan2(turn[..., 1], turn[..., 0]))
    assert -15 <= angle.min() < -14.9 and 14.9 < angle.max() <= 15
    low, high = draws[PREFIX + "colour"].min((0, 1)), draws[PREFIX + "colour"].max((0, 1))
    assert low == pytest.approx([0.8, 0.0, 1.0, -0.1], abs=0.01) and high == pytest.approx(
        [1.2, 2.5, 1.0, 0.1], abs=0.01
    )


def test_nothing_happens_unless_asked_for():
    assert not Augment().active
    assert not Augment(crop_share=0.5, padding="reflect").active


EVERYTHING = {
    "crop": 2,
    "crop_share": 0.7,
    "padding": "mean",
    "flip": 0.5,
    "flip_vertical": 0.2,
    "rotation": 30.0,
    "brightness": 0.3,
    "contrast": 0.3,
    "saturation": 0.3,
    "hue": 0.1,
}


@pytest.mark.parametrize("method", ["fedavg", "asd+disco", "mixup+moon", "scaffold+sam", "fedacd", "rfedavg_plus"])
def test_stack_is_loop_while_images_change(method):
    data = toy(shape=(3, 8, 8), pixels=True)
    ends = [
        held(
            advanced(federation(method, data=data, augment=EVERYTHING, engine={"kind": kind}, sampling={"clients": 4}))
        )
        for kind in ("stack", "loop")
    ]
    assert apart(*ends) <= 1e-12
    still = held(advanced(federation(method, data=data, sampling={"clients": 4})))
    assert apart(ends[0], still) > 1e-6


def test_teachers_see_the_images_as_they_are_changed():
    """A teacher's outputs may be kept for a round only where its inputs stay the same."""
    data = toy(shape=(3, 8, 8), pixels=True)
    ends = []
    for cache in (True, False):
        simulation = federation("asd(lam=5)", data=data, augment=EVERYTHING)
        simulation.engine.cache_views = cache
        ends.append(held(advanced(simulation)))
    assert identical(*ends)


def test_a_client_draws_the_same_whoever_else_takes_part():
    data = toy(shape=(3, 8, 8), pixels=True)
    plans = []
    for sampling in ({"clients": 2}, {}):
        simulation = federation("fedavg", data=data, augment=EVERYTHING, sampling=sampling)
        plans.append(simulation.engine.plan(0, 1, 3))
    assert plans[0].draws.keys() == plans[1].draws.keys() != set()
    assert all(np.array_equal(plans[0].draws[key], plans[1].draws[key]) for key in plans[0].draws)


def test_images_of_numbers_move_before_they_are_normalised():
    dataset, partition = toy(shape=(3, 8, 8), pixels=True)
    train, test = (replace(split, x=split.x.astype(np.float64)) for split in (dataset.train, dataset.test))
    floats = replace(dataset, train=train, test=test)
    moves = {"crop": 2, "padding": "zero", "flip": 0.5, "rotation": 30.0}
    ends = [held(advanced(federation("fedavg", data=(d, partition), augment=moves))) for d in (dataset, floats)]
    assert apart(*ends) <= 1e-12


@pytest.mark.parametrize(
    ("augment", "shape", "sentence"),
    [
        ({"flip": 0.5}, (4,), "changes images"),
        ({"crop": 8, "padding": "reflect"}, (3, 8, 8), "cannot be reflected"),
        ({"brightness": 0.1}, (3, 8, 8), "images of bytes"),
        ({"flip": 1.5}, (3, 8, 8), "augment.flip is a probability"),
        ({"crop": -1}, (3, 8, 8), "augment.crop is a number of pixels"),
        ({"rotation": 200.0}, (3, 8, 8), "augment.rotation must lie between 0 and 180"),
        ({"hue": 0.6}, (3, 8, 8), "augment.hue must lie between 0 and 0.5"),
        ({"contrast": -0.1}, (3, 8, 8), "augment.contrast must be 0 or more"),
    ],
)
def test_what_cannot_be_done_is_refused(augment, shape, sentence):
    with pytest.raises(UserError, match=sentence):
        federation("fedavg", data=toy(shape=shape), augment=augment)


def test_grey_images_have_no_hue():
    with pytest.raises(UserError, match="need three colours; these images have 1"):
        federation("fedavg", data=toy(shape=(1, 8, 8), pixels=True), augment={"hue": 0.1})


def test_a_misspelt_setting_is_refused():
    with pytest.raises(UserError, match=r"augment\.crops"):
        from_dict({"augment": {"crops": 4}})
