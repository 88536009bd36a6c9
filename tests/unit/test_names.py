"""Names of room members: valid and invalid signatures."""

import json
from pathlib import Path

import pytest

from tornado_signal.client.names import Identity, topic_of

TOPIC = "room~lobby"
# Generated with the browser module.
ID = "@O1ZyULHK0Ga4kOVyCnu8rGM7060oMaG5JAo2_IwFrnE"
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ALICE = Identity(TOPIC, "Alice 世界", "of Alice")
READER = Identity(TOPIC, None, None)


def test_id_depends_on_the_secret_only():
    assert ALICE.id == Identity("room~other", None, "of Alice").id == ID
    assert Identity(TOPIC, None, "of Bob").id != ID
    plain = {Identity(TOPIC, None, None).id for _ in range(10)}
    assert len(plain) == 10
    assert {id_[0] for id_ in plain} == {"$"}


def test_name_is_received_only_with_a_signature():
    beacon = ALICE.seal({"id": ALICE.id, "at": 1})
    assert beacon[86] == "{"
    assert READER.unseal(beacon, "id") == {"id": ID, "at": 1, "me": "Alice 世界"}
    mail = ALICE.seal({"from": ALICE.id}, READER.id)
    assert READER.unseal(mail, "from", READER.id) == {"from": ID, "me": "Alice 世界"}
    plain = json.dumps({"id": "plain", "me": "Alice 世界"})
    assert ALICE.unseal(plain, "id") == {"id": "plain"}


def test_key_of_a_visit_is_used_whatever_its_sign_is():
    for _ in range(20):
        member = Identity(TOPIC, None, None)
        assert READER.unseal(member.seal({"id": member.id}), "id") == {"id": member.id}
        assert READER.unseal(READER.seal({"id": member.id}), "id") is None


# A different text for the same bytes as ID: the last two bits of its last character are unused.
SAME_KEY = ID[:-1] + ALPHABET[ALPHABET.index(ID[-1]) + 1]
MAIL = ALICE.seal({"from": ID}, "x")


@pytest.mark.parametrize(
    "text",
    [
        MAIL[86:],
        "A" * 86 + MAIL[86:],
        MAIL[:85] + MAIL[86:],
        MAIL.replace("Alice", "Malice"),
        MAIL[:86] + MAIL[86:].replace(ID, "plain"),
        ALICE.seal({"from": ID}, "y"),
        ALICE.seal({"from": ID}),
        Identity("room~other", None, "of Alice").seal({"from": ID}, "x"),
        Identity(TOPIC, None, "of Bob").seal({"from": ID}, "x"),
        ALICE.seal({"from": SAME_KEY}, "x"),
        ALICE.seal({"from": "@"}, "x"),
        ALICE.seal({"from": "@é"}, "x"),
        *['{"from": 7}', '{"id": "x"}', "", "no JSON", "[]", "null", "{" * 100_000, '{"from":' * 50_000],
    ],
)
def test_unsigned_or_malformed_messages_are_ignored(text):
    assert READER.unseal(text, "from", "x") is None
    assert READER.unseal(MAIL, "from", "x") is not None


@pytest.mark.parametrize("name", [7, None, "", "x" * 257, "😀" * 129])
def test_invalid_names_are_dropped(name):
    sealed = Identity(TOPIC, None, "of Alice").seal({"from": ID, "me": name}, "x")
    assert READER.unseal(sealed, "from", "x") == {"from": ID}


def test_name_without_secret_or_too_long_is_refused():
    with pytest.raises(ValueError, match="a name needs a secret"):
        Identity(TOPIC, "Alice", None)
    with pytest.raises(ValueError, match="one to 256 characters"):
        Identity(TOPIC, "x" * 257, "of Alice")
    Identity(TOPIC, "x" * 256, "of Alice")


VECTORS = json.loads((Path(__file__).parents[1] / "room-vectors.json").read_text())


@pytest.mark.parametrize(("room", "topic"), VECTORS["topics"])
def test_topics(room, topic):
    assert topic_of(room) == topic


def unseal_vector(vector):
    return Identity(VECTORS["topic"], None, None).unseal(vector["text"], vector["field"], vector["to"])


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["what"])
def test_accepted_vectors(vector):
    assert unseal_vector(vector) == vector["fields"]


@pytest.mark.parametrize("vector", VECTORS["ignored"], ids=lambda vector: vector["what"])
def test_ignored_vectors(vector):
    assert unseal_vector(vector) is None


def test_vectors_of_ids():
    assert [Identity(TOPIC, None, vector["secret"]).id for vector in VECTORS["identities"]] == [
        vector["id"] for vector in VECTORS["identities"]
    ]
