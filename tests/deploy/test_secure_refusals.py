"""What clients and the server refuse, with a sentence; a sum goes on without whom the server refuses."""

import json

import numpy as np
import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from secure_sums import SESSION, Sum, cohort, total

from fedbraid.deploy.masking_steps import check_terms
from fedbraid.deploy.messages import MessageRefused
from fedbraid.deploy.secagg.key_agreement import signer, verifier
from fedbraid.deploy.secagg.participant import Participant
from fedbraid.deploy.secagg.protocol import (
    Advert,
    KeyRoster,
    ProtocolError,
    Session,
    Terms,
    TooFewParticipants,
    read_shares,
    write,
)
from fedbraid.deploy.secagg.shamir import PRIME, SHARE, interpolation

OTHER = Session("a-run", 4, "train")


@pytest.fixture
def game():
    return Sum(cohort(5, lambda k: [k, 10 * k, 2**64 - 1 - k]))


def altered(message, change):
    content = json.loads(message)
    change(content)
    return json.dumps(content).encode()


def told(*names, session=SESSION):
    return write("survivors", session, names=list(names))


def flip(text):
    """Hexadecimal digits with one bit changed."""
    return f"{int(text[0], 16) ^ 1:x}{text[1:]}"


# --- what a client reveals


@pytest.fixture
def masked(game):
    game.introduce()
    game.share()
    game.mask()
    return game


def test_a_client_never_reveals_both_secrets_of_another(masked):
    a, everybody = masked.clients["client-0"], list(masked.clients)
    first = json.loads(a.reveal(told(*everybody)))["shares"]
    for later in (everybody[:4], everybody[:3], [everybody[0], *everybody[2:]]):
        with pytest.raises(ProtocolError, match="revealed shares for other survivors before"):
            a.reveal(told(*later))
    assert json.loads(a.reveal(told(*everybody)))["shares"] == first
    b = masked.clients["client-1"]
    b.reveal(told(*everybody[:4]))
    with pytest.raises(ProtocolError, match="revealed shares for other survivors before"):
        b.reveal(told(*everybody))


def test_nor_after_it_was_put_away(masked):
    masked.reveal()
    a = Participant.restored(masked.clients["client-0"].state())
    with pytest.raises(ProtocolError, match="revealed shares for other survivors before"):
        a.reveal(told(*list(masked.clients)[:4]))


def test_what_it_reveals_is_one_share_of_each(masked):
    a = masked.clients["client-0"]
    shares = json.loads(a.reveal(told(*list(masked.clients)[:4])))["shares"]
    assert shares.keys() == masked.clients.keys()
    both = {name: two.hex() for name, two in a.held.items()}
    for name, two in both.items():
        half = len(two) // 2
        assert shares[name] == (two[half:] if name == "client-4" else two[:half])


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (["client-1", "client-2", "client-3"], "it is not among the survivors"),
        (["client-0", "client-1", "client-2", "mallory"], "shares no mask"),
    ],
)
def test_it_answers_for_its_own_sum_only(masked, names, error):
    with pytest.raises(ProtocolError, match=error):
        masked.clients["client-0"].reveal(told(*names))


@pytest.mark.parametrize("names", [[], ["client-0"], ["client-0", "client-1"]])
def test_it_unmasks_no_sum_of_few(masked, names):
    with pytest.raises(TooFewParticipants if names else ProtocolError):
        masked.clients["client-0"].reveal(told(*names))
    assert masked.reveal().tolist() == total(masked.numbers, masked.numbers).tolist()


def test_it_reveals_nothing_before_it_masked(game):
    with pytest.raises(ProtocolError, match="told no roster"):
        game.clients["client-0"].reveal(told(*game.clients))
    game.introduce()
    game.share()
    with pytest.raises(ProtocolError, match="masked nothing yet"):
        game.clients["client-0"].reveal(told(*game.clients))


# --- what a client masks


def test_it_masks_one_vector_with_one_mask(game):
    """The difference of two vectors under the same masks would be bare."""
    game.introduce()
    game.share()
    a, delivered = game.clients["client-0"], game.delivered["client-0"]
    a.mask(delivered, game.numbers["client-0"])
    with pytest.raises(ProtocolError, match="masked other numbers, or with others, before"):
        a.mask(delivered, game.numbers["client-1"])
    fewer = altered(delivered, lambda content: content["shares"].pop("client-3"))
    with pytest.raises(ProtocolError, match="masked other numbers, or with others, before"):
        Participant.restored(a.state()).mask(fewer, game.numbers["client-0"])


def test_numbers_of_another_kind_are_not_masked(game):
    game.introduce()
    game.share()
    for wrong in (np.zeros(3), np.zeros(3, np.int64), np.zeros((3, 1), np.uint64)):
        with pytest.raises(ValueError, match="uint64"):
            game.clients["client-0"].mask(game.delivered["client-0"], wrong)


def test_too_few_partners_hide_nothing(game):
    game.introduce()
    game.share()
    one = altered(game.delivered["client-0"], lambda content: [content["shares"].pop(f"client-{k}") for k in (1, 2, 3)])
    with pytest.raises(TooFewParticipants, match="2 of 5 clients sent shares, and a secure sum of them needs 4"):
        game.clients["client-0"].mask(one, game.numbers["client-0"])


def swap(content):
    shares = content["shares"]
    shares["client-1"], shares["client-2"] = shares["client-2"], shares["client-1"]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c["shares"].update({"mallory": c["shares"]["client-1"]}), "outside of the roster"),
        (lambda c: c["shares"].update({"client-0": c["shares"]["client-1"]}), "outside of the roster"),
        (lambda c: c["shares"].update({"client-1": 7}), "hexadecimal"),
        (lambda c: c.update(shares=[1, 2]), "table"),
        (lambda c: c.pop("shares"), "table"),
        (lambda c: c.update(kind="survivors"), "should be of kind 'delivery', not 'survivors'"),
        (lambda c: c["session"].update(attempt=1), "not of this sum"),
    ],
)
def test_malformed_shares_are_refused(game, change, error):
    game.introduce()
    game.share()
    with pytest.raises(ProtocolError, match=error):
        game.clients["client-0"].mask(altered(game.delivered["client-0"], change), game.numbers["client-0"])
    game.mask()  # nothing was spoilt by that
    assert game.reveal().tolist() == total(game.numbers, game.numbers).tolist()


@pytest.mark.parametrize(
    ("change", "whose"),
    [
        (lambda c: c["shares"].update({"client-1": flip(c["shares"]["client-1"])}), ("client-1",)),
        (lambda c: c["shares"].update({"client-2": c["shares"]["client-2"][:-2]}), ("client-2",)),
        (lambda c: c["shares"].update({"client-2": ""}), ("client-2",)),
        (swap, ("client-1", "client-2")),
    ],
)
def test_altered_shares_are_told_of_and_the_sum_goes_on(game, change, whose):
    """Garbage from one client must not evict another that cannot open it."""
    game.introduce()
    game.share()
    game.delivered["client-0"] = altered(game.delivered["client-0"], change)
    client = game.clients["client-0"]
    client.mask(game.delivered["client-0"], game.numbers["client-0"])
    assert client.unopened == whose and client.held.keys().isdisjoint(whose)
    game.mask()
    assert game.reveal().tolist() == total(game.numbers, game.numbers).tolist()


def test_shares_of_an_earlier_sum_do_not_open(game):
    """Messages that the server recorded: the same clients, another round, its envelope rewritten."""
    earlier = Sum(game.numbers, OTHER)
    earlier.introduce()
    earlier.share()
    game.introduce()
    game.share()
    replayed = altered(earlier.delivered["client-0"], lambda content: content["session"].update(round=3))
    game.clients["client-0"].mask(replayed, game.numbers["client-0"])
    assert game.clients["client-0"].unopened == tuple(f"client-{k}" for k in range(1, 5))


def test_clients_told_different_rosters_do_not_open(game):
    """A roster with another client's position taken: shares sealed under the one do not open under the other."""
    game.introduce()
    content = json.loads(game.roster)
    content["clients"][3][1] = json.loads(Participant(SESSION, "client-3").advert())
    other = KeyRoster.read(SESSION, json.dumps(content).encode())
    shares = game.each(
        game.clients,
        lambda c: c.share(other.message if c.name == "client-1" else game.roster) if c.name[-1] != "3" else b"",
    )
    delivery = write(
        "delivery",
        SESSION,
        shares={n: json.loads(s)["shares"]["client-0"] for n, s in shares.items() if s and n != "client-0"},
    )
    game.clients["client-0"].mask(delivery, game.numbers["client-0"])
    assert game.clients["client-0"].unopened == ("client-1",)


# --- the roster


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c.update(threshold=3), "must be from 4 to 5, not 3"),
        (lambda c: c.update(threshold=6), "must be from 4 to 5, not 6"),
        (lambda c: c.update(threshold="3"), "threshold"),
        (lambda c: c.update(threshold=True), "threshold"),
        (lambda c: c["clients"].pop(0), "its keys are not in the roster"),
        (lambda c: c["clients"][0][1].update(pairs=c["clients"][1][1]["pairs"]), "its keys are not in the roster"),
        (lambda c: c["clients"].append(c["clients"][0]), "client-0 is twice"),
        (lambda c: c["clients"][2].pop(), "names with adverts"),
        (lambda c: c["clients"][2][1].update(seals="00"), "1 bytes where 32 should be"),
        (lambda c: c["clients"][2][1].update(seals="zz"), "hexadecimal"),
        (lambda c: c["clients"][2][1].update(seals="00" * 32), "no secret can be agreed on"),
        (lambda c: c["clients"][2][1].pop("promise"), "hexadecimal"),
        (lambda c: c["session"].update(run="another"), "not of this sum"),
        (lambda c: c.update(clients="everybody"), "clients"),
    ],
)
def test_a_client_refuses_a_bad_roster(game, change, error):
    game.introduce()
    with pytest.raises(ProtocolError, match=error):
        game.clients["client-0"].share(altered(game.roster, change))
    assert game.clients["client-0"].roster is None


def test_a_client_refuses_a_roster_of_two(game):
    game.introduce()
    two = altered(game.roster, lambda c: c.update(clients=c["clients"][:2], threshold=2))
    with pytest.raises(ProtocolError, match="fewer than 3 clients hides nobody"):
        game.clients["client-0"].share(two)


def test_a_client_is_told_one_roster(game):
    game.introduce()
    a = game.clients["client-0"]
    a.share(game.roster)
    with pytest.raises(ProtocolError, match="told another roster before"):
        a.share(altered(game.roster, lambda c: c.update(threshold=5)))


@pytest.mark.parametrize("message", [b"", b"{", b"[]", b"7", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_letter_is_refused(game, message):
    for answer in (game.clients["client-0"].share, Advert.read):
        with pytest.raises(ProtocolError):
            answer(message)
    game.introduce()
    game.clients["client-0"].share(game.roster)
    with pytest.raises(ProtocolError):
        game.clients["client-0"].mask(message, game.numbers["client-0"])
    with pytest.raises(ProtocolError):
        game.clients["client-0"].reveal(message)


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_the_server_wants_no_threshold_of_two_thirds_or_less(threshold, game):
    with pytest.raises(ProtocolError, match=f"must be from 4 to 5, not {threshold}"):
        Sum(game.numbers, threshold=threshold).run()


# --- signatures

PRIVATE = {f"client-{k}": bytes([k + 1]) * 32 for k in range(5)}
PUBLIC = {
    name: Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() for name, key in PRIVATE.items()
}


def signed(game, impostor=None):
    """Adverts signed by their own keys, but one by another's."""
    keys = PRIVATE | ({impostor: bytes([99]) * 32} if impostor else {})
    return {name: client.advert(signer(keys[name])) for name, client in game.clients.items()}


def test_signed_keys_are_good(game):
    verify = verifier(PUBLIC)
    game.server.verify = verify
    roster = game.server.roster(signed(game))
    game.delivered = game.server.deliver({n: c.share(roster, verify) for n, c in game.clients.items()})
    game.mask()
    assert game.reveal().tolist() == total(game.numbers, game.numbers).tolist()
    assert not game.server.refused


def test_the_server_leaves_out_whose_keys_are_not_signed(game):
    game.server.verify = verifier(PUBLIC)
    adverts = signed(game, "client-2") | {"client-3": game.clients["client-3"].advert()}
    roster = KeyRoster.read(SESSION, game.server.roster(adverts))
    assert list(roster.adverts) == ["client-0", "client-1", "client-4"]
    assert game.server.refused == {n: f"the keys of {n} are not signed by {n}" for n in ("client-2", "client-3")}


def test_a_server_in_the_middle_is_found_out(game):
    """It answers for client-2 with keys of its own, signed by whatever it has."""
    verify = verifier(PUBLIC)
    middle = Participant(SESSION, "client-2")
    genuine = signed(game)
    for forged in (
        middle.advert(signer(bytes(32))),
        middle.advert(signer(PRIVATE["client-1"])),
        middle.advert(),
        altered(middle.advert(), lambda c: c.update(signature=json.loads(genuine["client-2"])["signature"])),
        Participant(OTHER, "client-2", game.clients["client-2"].root).advert(signer(PRIVATE["client-2"])),
    ):
        forged = altered(forged, lambda c: c["session"].update(round=3))
        roster = game.server.roster(genuine | {"client-2": forged})  # a server does not check what it forged itself
        with pytest.raises(ProtocolError, match="the keys of client-2 are not signed by client-2"):
            game.clients["client-0"].share(roster, verify)


def test_names_outside_of_the_federation_are_refused(game):
    unknown_run = Participant(SESSION, "mallory").advert(signer(bytes(32)))
    roster = game.server.roster(signed(game) | {"mallory": unknown_run})
    with pytest.raises(ProtocolError, match="the keys of mallory are not signed"):
        game.clients["client-0"].share(roster, verifier(PUBLIC))


# --- what the server refuses, and goes on without


def without(game, name, step):
    """The sum goes on, and the server says why one is missing."""
    rest = [n for n in game.clients if n != name]
    if step < 2:
        game.share(rest)
    if step < 3:
        game.mask(rest)
    found = game.reveal(rest)
    counted = rest if step < 3 else game.clients
    assert found.tolist() == total(game.numbers, counted).tolist()
    assert list(game.server.refused) == [name]
    return game.server.refused[name]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c.update(pairs="00" * 32), "no secret can be agreed on"),
        (lambda c: c.update(seals="00" * 32), "no secret can be agreed on"),
        (lambda c: c.update(pairs="00" * 31), "31 bytes where 32 should be"),
        (lambda c: c.update(promise=None), "hexadecimal"),
        (lambda c: c["session"].update(attempt=7), "not of this sum"),
    ],
)
def test_bad_keys(game, change, error):
    adverts = game.each(game.clients, lambda c: c.advert())
    game.roster = game.server.roster(adverts | {"client-3": altered(adverts["client-3"], change)})
    assert error in without(game, "client-3", 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c["shares"].pop("client-0"), "shares for others than are in the roster"),
        (lambda c: c["shares"].update(mallory="00"), "shares for others than are in the roster"),
        (lambda c: c["shares"].update({"client-0": "x"}), "hexadecimal"),
        (lambda c: c.update(kind="advert"), "should be of kind 'shares'"),
    ],
)
def test_bad_shares(game, change, error):
    game.introduce()
    shares = game.each(game.clients, lambda c: c.share(game.roster))
    game.delivered = game.server.deliver(shares | {"client-3": altered(shares["client-3"], change)})
    assert error in without(game, "client-3", 2)


@pytest.mark.parametrize(
    ("vector", "error"),
    [
        (np.zeros(4, np.uint64), r"uint64 \[4\] and not uint64 \[3\]"),
        (np.zeros((3, 1), np.uint64), r"uint64 \[3, 1\]"),
        (np.zeros(3), r"float64 \[3\]"),
        (np.zeros(3, np.int64), r"int64 \[3\]"),
    ],
)
def test_bad_vectors(game, vector, error):
    game.introduce()
    game.share()
    came = game.each(game.clients, lambda c: c.mask(game.delivered[c.name], game.numbers[c.name]))
    game.masked, game.payload = came, game.server.survivors(came | {"client-3": vector})
    rest = [n for n in game.clients if n != "client-3"]
    assert game.reveal(rest).tolist() == total(game.numbers, rest).tolist()
    with pytest.raises(ProtocolError, match=error):
        raise ProtocolError(game.server.refused["client-3"])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda c: c["shares"].update(mallory=c["shares"]["client-0"]), "shares of others than it was asked for"),
        (lambda c: c["shares"].update({"client-0": "00"}), "1 bytes where 66 should be"),
        (lambda c: c["session"].update(what="probe"), "not of this sum"),
    ],
)
def test_bad_reveals(masked, change, error):
    revealed = masked.each(masked.clients, lambda c: c.reveal(masked.payload))
    found = masked.server.total(revealed | {"client-0": altered(revealed["client-0"], change)})
    assert found.tolist() == total(masked.numbers, masked.numbers).tolist()
    assert error in masked.server.refused["client-0"]


def wrong_reveal(game, of, lost=(), by="client-0"):
    """Reveals of which one has a share that was altered where no seal protects it."""
    game.introduce()
    game.share()
    game.mask([n for n in game.clients if n not in lost])
    revealed = game.each(game.masked, lambda c: c.reveal(game.payload))
    return revealed, revealed | {by: altered(revealed[by], lambda c: c["shares"].update({of: flip(c["shares"][of])}))}


@pytest.mark.parametrize("of", ["client-1", "client-4"])
def test_a_wrong_share_is_found_out_and_the_others_help(game, of):
    _, wrong = wrong_reveal(game, of)
    assert game.server.total(wrong).tolist() == total(game.numbers, game.numbers).tolist()
    assert game.server.refused == {"client-0": f"it revealed a wrong share of {of}'s secret"}


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_several_wrong_shares_are_found_out(liars):
    """Of ten clients seven must help, and three may lie."""
    game = Sum(cohort(10, lambda k: [k, 10 * k]))
    revealed, _ = wrong_reveal(game, "client-0")
    who = [f"client-{k}" for k in (2, 5, 9)[:liars]]
    lies = {
        n: altered(revealed[n], lambda c: [c["shares"].update({o: flip(s)}) for o, s in c["shares"].items()])
        for n in who
    }
    assert game.server.total(revealed | lies).tolist() == total(game.numbers, game.numbers).tolist()
    assert sorted(game.server.refused) == (who if liars < 3 else [])  # of three nobody can be sure


def test_two_liars_cannot_have_an_honest_client_named():
    """Their errors cancel in the secret of some groups, whose polynomial is another then."""
    game = Sum(cohort(10, lambda k: [k, 10 * k]))
    revealed, _ = wrong_reveal(game, "client-0")
    group = [f"client-{k}" for k in range(7)]
    first, second = interpolation([1, 2, 3, 4, 5, 6, 7])[:2]
    lies = {}
    for name, by in (("client-0", second), ("client-1", -first)):
        share = int.from_bytes(bytes.fromhex(json.loads(revealed[name])["shares"]["client-0"]), "little")
        wrong = ((share + by) % PRIME).to_bytes(SHARE, "little").hex()
        lies[name] = altered(revealed[name], lambda c, wrong=wrong: c["shares"].update({"client-0": wrong}))
    assert game.server._joined("client-0", group, {n: read_shares(json.loads(r)) for n, r in (revealed | lies).items()})
    assert game.server.total(revealed | lies).tolist() == total(game.numbers, game.numbers).tolist()
    assert set(game.server.refused) <= {"client-0", "client-1"}


def test_a_share_that_is_not_revealed_is_done_without(game):
    revealed, _ = wrong_reveal(game, "client-1")
    fewer = altered(revealed["client-0"], lambda c: c["shares"].pop("client-1"))
    assert game.server.total(revealed | {"client-0": fewer}).tolist() == total(game.numbers, game.numbers).tolist()


@pytest.mark.parametrize("of", ["client-1", "client-4"])
def test_a_wrong_share_makes_no_wrong_sum(game, of):
    """Without a helper to spare nobody knows who lied; no sum is told, and the error names who may have."""
    revealed, wrong = wrong_reveal(game, of, ["client-4"])
    with pytest.raises(ProtocolError, match=f"client-0, client-1, client-2, client-3 revealed do not give .* of {of}"):
        game.server.total(wrong)
    assert game.server.total(revealed).tolist() == total(game.numbers, game.masked).tolist()


# --- what a lying server gets


def opened_by(game, of, first, second, colluders):
    """Which secrets of a client a server has that names it a survivor to one group and lost to another."""
    others = [n for n in game.clients if n not in (of, *colluders)]
    groups = [others[: first - len(colluders)], others[first - len(colluders) :][:second]]
    lives, dies = list(game.clients), [n for n in game.clients if n != of]
    own, pair = set(colluders), set(colluders)  # who help with the own secret, and with the pair key
    for group, names, helpers in ((groups[0], lives, own), (groups[1], dies, pair)):
        for name in group:
            game.clients[name].reveal(told(*names))
            helpers.add(name)
    return len(own), len(pair)


def test_one_colluder_of_five_does_not_open_both_secrets(masked):
    """With a bare majority of 3 as threshold, one colluder and two honest clients in each group would have done."""
    own, pair = opened_by(masked, "client-4", 3, 2, ["client-3"])
    needed = masked.server._roster.threshold
    assert min(own, pair) >= 2 and not (own >= needed and pair >= needed)
    assert needed == 4


def terms(game, **changes):
    values = {"names": list(game.clients), "bound": 1.0, "clients": 5, "parts": [("model", [1.0] * 5)]} | changes
    return Terms.create(SESSION, **values)


def test_clients_that_are_told_different_weights_share_no_masks(game):
    """A server that tells one client another weight than the others gets noise."""
    game.introduce()
    game.share()
    usual, other = terms(game), terms(game, parts=[("model", [1.0, 1.0, 1.0, 1.0, 0.5])])
    masked = {
        n: c.mask(game.delivered[n], game.numbers[n], other if n == "client-2" else usual)
        for n, c in game.clients.items()
    }
    game.payload, game.server.terms = game.server.survivors(masked), usual.digest
    game.masked = masked
    found = game.reveal()
    assert all(int(value) != right for value, right in zip(found, total(game.numbers, game.numbers), strict=True))


def test_terms_are_for_those_who_share_masks(game):
    game.introduce()
    game.share()
    fewer = terms(game, names=["client-0", "client-1", "client-2", "client-3"], parts=[("model", [1.0] * 4)])
    with pytest.raises(ProtocolError, match="for other clients"):
        game.clients["client-0"].mask(game.delivered["client-0"], game.numbers["client-0"], fewer)


def test_lost_clients_are_recovered_under_terms(game):
    game.introduce()
    game.share()
    usual = terms(game)
    game.server.terms = usual.digest
    stay = [n for n in game.clients if n != "client-2"]
    game.masked = game.each(stay, lambda c: c.mask(game.delivered[c.name], game.numbers[c.name], usual))
    game.payload = game.server.survivors(game.masked)
    assert game.reveal().tolist() == total(game.numbers, stay).tolist()


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([("model", [1.0, 1.0, 0.0, 0.0, 0.0])], "2 clients count"),
        ([("model", [1.0, 1e-6, 1e-6, 1e-6, 1e-6])], "one client has 100.0% of the weight"),
        ([("model", [1.0, 1.0, 1.0, -1.0, 1.0])], "different signs"),
        (
            [("model", [1.0, 1.0, 1.0, 1.0, 1.0]), ("model", [1.0, 1.0, 1.0, 1.0, 1.5])],
            "tells the numbers of one client",
        ),
        (
            [("model", [1.0, 1.0, 1.0, 1.0, 1.0]), ("model", [1.0, 1.0, 1.0, 2.0, 1.5])],
            "tells the numbers of one client",
        ),
        ([("model", [1.0] * 5), ("model", [1.0, 1.0001, 1.0002, 1.0001, 3.0])], "tells the numbers of one client"),
        ([("scaffold.change", [1.0, 1.0, 1.0, 1.0, 2.0])], "only plain ones"),
        ([("nothing", [1.0] * 5)], "not to be summed"),
    ],
)
def test_weights_that_single_a_client_out_are_refused(game, parts, reason):
    uploads = frozenset({"model", "scaffold.change"})
    with pytest.raises(MessageRefused, match=reason):
        check_terms(terms(game, parts=parts), uploads)
    check_terms(terms(game, parts=[("model", [5.0, 3.0, 9.0, 1.0, 6.0]), ("model", [1.0] * 5)]), uploads)


@pytest.mark.parametrize(
    "changes",
    [
        {"names": ["a", "a"], "parts": [("model", [1.0, 1.0])]},
        {"bound": 0.0},
        {"clients": 4},
        {"parts": []},
        {"parts": [("model", [1.0])]},
        {"parts": [("model", [True] * 5)]},
    ],
)
def test_malformed_terms_are_refused(game, changes):
    with pytest.raises(ProtocolError):
        terms(game, **changes)


def test_answers_that_were_not_asked_for(game):
    game.introduce(list(game.clients)[:4])
    late = {"client-4": write("shares", SESSION, shares={})}
    shares = game.each(list(game.clients)[:4], lambda c: c.share(game.roster))
    game.delivered = game.server.deliver(shares | late)
    assert "client-4 was not asked in this step of train of round 3" in game.server.refused["client-4"]
    game.mask()
    assert game.reveal().tolist() == total(game.numbers, list(game.clients)[:4]).tolist()
