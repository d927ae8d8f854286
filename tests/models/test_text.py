"""Networks for texts: padding, the last token, filters by hand, and word vectors from a file."""

import pytest
import torch
from helpers import advanced, federation
from small_networks import SMALL, TOKENS
from torch import nn

from fedbraid.errors import UserError
from fedbraid.models import build

TEXT = torch.tensor([[2, 3, 4, 5, 2, 3], [6, 7, 8, 0, 0, 0], [9, 0, 0, 0, 0, 0], [2, 0, 3, 0, 0, 0]])


def test_the_lstms_features_are_its_state_after_the_last_token():
    network = build("lstm", (6,), 2, tokens=TOKENS, embedding=4, hidden=5).double()
    reference = nn.LSTM(4, 5, 2, batch_first=True).double()
    reference.load_state_dict(network.lstm.state_dict())
    for text, features in zip(TEXT, network(TEXT).features, strict=True):
        length = int(text.nonzero().max()) + 1  # padding inside a text is a token like any other
        _, (h, _) = reference(network.embedding(text[None, :length]))
        torch.testing.assert_close(features, h[-1, 0])


def test_more_padding_changes_nothing_for_the_lstm_and_a_text_without_tokens_has_no_features():
    network = build("lstm", (6,), 2, tokens=TOKENS, embedding=4, hidden=5).double()
    longer = torch.cat([TEXT, torch.zeros(4, 3, dtype=torch.int64)], 1)
    torch.testing.assert_close(network(longer).logits, network(TEXT).logits)
    assert not network(torch.zeros(1, 6, dtype=torch.int64)).features.any()


def test_textcnn_takes_the_greatest_answer_of_each_filter():
    network = build("textcnn", (6,), 2, tokens=TOKENS, embedding=4, filters=3).double()
    embedded = network.embedding(TEXT)
    features = []
    for conv, width in zip(network.filters, (3, 4, 5), strict=True):
        for weight, bias in zip(conv.weight, conv.bias, strict=True):
            answers = [(embedded[:, at : at + width] * weight.T).sum((1, 2)) + bias for at in range(6 - width + 1)]
            features.append(torch.stack(answers).amax(0).clamp(min=0))
    torch.testing.assert_close(network(TEXT).features, torch.stack(features, 1))


@pytest.mark.parametrize("name", ["textcnn", "lstm"])
@pytest.mark.parametrize("kind", ["stack", "loop"])
def test_padding_is_embedded_as_zeros_and_stays_so(name, kind):
    small = SMALL[name]
    trained = advanced(federation(data=small.data(), model={"name": name, **small.options}, engine={"kind": kind}))
    rows = trained.module().embedding.weight
    assert not rows[0].any()
    assert (rows[1:] != small.network().embedding.weight[1:]).any(1).all(), "all others are trained"


@pytest.fixture
def glove(tmp_path):
    def write(*lines):
        file = tmp_path / "vectors.txt"
        file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return file

    return write


def test_known_tokens_have_the_files_vectors_and_others_small_random_ones(glove):
    file = glove("the 1 2 3", "élan 7 7 7", "or not 4 4 4", "be 0.5 -1e-2 0", "not -1 -2 -3", "? 9 8 7", " 5 5 5")
    make = {"tokens": TOKENS, "embedding": 3, "hidden": 4, "vectors": str(file)}
    network = build("lstm", (6,), 2, **make)
    rows = network.embedding.weight
    for token, vector in {"the": [1, 2, 3], "be": [0.5, -0.01, 0], "not": [-1, -2, -3], "?": [9, 8, 7]}.items():
        assert rows[TOKENS.index(token)].tolist() == pytest.approx(vector)
    assert not rows[0].any(), "padding stays zeros, whatever the file says of its name"
    unknown = rows[[TOKENS.index(t) for t in ("to", "or", "that", "is", "question")]]
    assert 0 < unknown.abs().max() < 0.5
    assert torch.equal(build("lstm", (6,), 2, **make).embedding.weight, rows)
    assert not torch.equal(build("lstm", (6,), 2, **make, seed=1).embedding.weight[2], rows[2])


def test_frozen_embeddings_travel_and_are_not_trained(glove):
    small, file = SMALL["lstm"], glove("to 1 2 3 4", "be 5 6 7 8")
    for kind in ("stack", "loop"):
        model = {"name": "lstm", **small.options, "frozen": True, "vectors": str(file)}
        simulation = federation(data=small.data(), model=model, engine={"kind": kind}, optimizer={"weight_decay": 0.1})
        before = simulation.module().state_dict()
        after = advanced(simulation, 1).module().state_dict()
        assert {key for key in after if torch.allclose(before[key], after[key])} == {"embedding.weight"}
        assert after["embedding.weight"][TOKENS.index("be")].tolist() == pytest.approx([5, 6, 7, 8])


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (["the 1 2"], "line 1 of .*vectors.txt has 2 numbers after its word, but embedding is 3"),
        (["the 1 2 3 4"], "line 1 of .*vectors.txt has 4 numbers after its word, but embedding is 3"),
        (["le 1 2 3 4", "the 1 2 3"], "line 1 of .* has 4 numbers"),
        (["le 1 2 3", "the 1 2"], "line 2 of .* has 2 numbers"),
        (["le 1 2 3", "the 1 2 x"], "line 2 of .* is not a word and 3 numbers"),
        *(
            (["le 1 2 3", f"the 1 {value} 2"], r"line 2 of .*vectors.txt has a number that is not finite or does not")
            for value in ("nan", "inf", "-inf", "1e39")
        ),
        (["le 1 2 3", "la 1 2 3"], "vectors for none of the 9 words of the data"),
        ([], "vectors for none of the 9 words of the data"),
    ],
)
def test_a_file_of_another_kind_is_refused(lines, sentence, glove):
    with pytest.raises(UserError, match=sentence):
        build("lstm", (6,), 2, tokens=TOKENS, embedding=3, vectors=glove(*lines))


def test_a_path_may_begin_at_home(glove, monkeypatch):
    monkeypatch.setenv("HOME", str(glove("the 1 2 3").parent))
    network = build("lstm", (6,), 2, tokens=TOKENS, embedding=3, hidden=4, vectors="~/vectors.txt")
    assert network.embedding.weight[TOKENS.index("the")].tolist() == [1, 2, 3]


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match="vectors must name a text file of word vectors, such as GloVe's, not 5"):
        build("lstm", (6,), 2, tokens=TOKENS, vectors=5)
    with pytest.raises(UserError, match=r"there is no file .*nothing\.txt"):
        build("lstm", (6,), 2, tokens=TOKENS, vectors=tmp_path / "nothing.txt")
