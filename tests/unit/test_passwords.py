"""Rooms with a password: their topics, and what can be decrypted."""

import json
from pathlib import Path

import pytest

from tornado_signal.client.names import topic_of
from tornado_signal.client.passwords import Cipher

VECTORS = json.loads((Path(__file__).parents[1] / "room-vectors.json").read_text())["password"]
CIPHER = Cipher(topic_of(VECTORS["room"]), VECTORS["password"])


def named(vector):
    return vector["what"]


def test_topic_is_made_from_the_name_and_the_password():
    assert CIPHER.topic == VECTORS["topic"]


@pytest.mark.parametrize("vector", VECTORS["others"], ids=named)
def test_topics_of_other_passwords(vector):
    assert Cipher(topic_of(VECTORS["room"]), vector["password"]).topic == vector["topic"]


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=named)
def test_accepted_vectors(vector):
    assert CIPHER.unseal(vector["text"], vector.get("code")) == vector["plain"]


@pytest.mark.parametrize("vector", VECTORS["ignored"], ids=named)
def test_ignored_vectors_are_counted(vector):
    before = CIPHER.ignored
    assert CIPHER.unseal(vector["text"], vector.get("code")) == ""
    assert CIPHER.ignored == before + 1


def test_mail_is_accepted_once_and_a_beacon_whenever_it_is_listed():
    beacon, mail, other = CIPHER.seal("b"), CIPHER.seal("m", "1"), CIPHER.seal("o", "2")
    texts = [(beacon, None), (beacon, None), (mail, "1"), (mail, "1"), (f"{mail} ", "1"), (other, "2")]
    assert [CIPHER.unseal(text, code) for text, code in texts] == ["b", "b", "m", "", "", "o"]


def test_equal_texts_are_encrypted_differently():
    assert CIPHER.seal("b") != CIPHER.seal("b")


@pytest.mark.needs("aiortc")
async def test_empty_password_is_refused():
    from tornado_signal.client.room import Room

    with pytest.raises(ValueError, match="a password is not empty"):
        Room(None, None, "lobby", "", None, None, "", True, None, lambda room: None)
