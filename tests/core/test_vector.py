"""A model as one vector: views, their inverse, and gradients through them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbraid.core.vector import Layout

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), max_size=6)


def tensors(shapes):
    return {f"p{i}": torch.randn(shape, dtype=torch.float64) for i, shape in enumerate(shapes)}


@given(SHAPES)
def test_views_and_flatten_are_inverse(shapes):
    named = tensors(shapes)
    layout = Layout.of(named)
    vector = layout.flatten(named)
    assert len(vector) == layout.size == sum(t.numel() for t in named.values())
    views = layout.views(vector)
    assert views.keys() == named.keys()
    for name, tensor in named.items():
        assert torch.equal(views[name], tensor)
        assert torch.equal(vector[layout.span(name)], tensor.reshape(-1))
    assert torch.equal(layout.flatten(views), vector)


def test_views_share_the_vectors_memory():
    layout = Layout(("a", "b"), ((2, 3), (4,)))
    vector = torch.zeros(10)
    layout.views(vector)["b"][1] = 5.0
    assert vector.tolist() == [0.0] * 7 + [5.0] + [0.0] * 2


@given(SHAPES.filter(lambda shapes: bool(shapes)))
def test_the_gradient_through_views_is_the_flattened_gradient(shapes):
    named = tensors(shapes)
    layout = Layout.of(named)
    vector = layout.flatten(named).requires_grad_()
    sum((i + 1) * (v**2).sum() for i, v in enumerate(layout.views(vector).values())).backward()
    expected = layout.flatten({name: 2 * (i + 1) * t for i, (name, t) in enumerate(named.items())})
    torch.testing.assert_close(vector.grad, expected)


def test_a_layout_travels_as_a_value():
    one, other = (Layout.of({"a": torch.zeros(2, 3), "b": torch.zeros(())}) for _ in range(2))
    assert one == other and hash(one) == hash(other)
    assert one != Layout.of({"b": torch.zeros(()), "a": torch.zeros(2, 3)})
