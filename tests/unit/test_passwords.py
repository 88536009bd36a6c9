"""Rooms with a password: their topics, and what can be decrypted."""

import json
from operator import itemgetter
from pathlib import Path

import pytest

from tornado_signal_client.names import Cipher, topic_of

ORIGIN, VECTORS = itemgetter("origin", "password")(
    json.loads((Path(__file__).parents[1] / "room-vectors.json").read_text())
)


@pytest.fixture(scope="module")
def cipher():
    return Cipher(ORIGIN, topic_of(VECTORS["room"]), VECTORS["password"])


def named(vector):
    return vector["what"]


def test_topic_is_made_from_the_name_and_the_password(cipher):
    assert cipher.topic == VECTORS["topic"]


@pytest.mark.parametrize("vector", VECTORS["others"], ids=named)
def test_topics_of_other_passwords(vector):
    cipher = Cipher(vector.get("origin", ORIGIN), topic_of(VECTORS["room"]), vector["password"])
    assert cipher.topic == vector["topic"]


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=named)
def test_accepted_vectors(cipher, vector):
    assert cipher.unseal(vector["text"], vector.get("code")) == vector["plain"]


@pytest.mark.parametrize("vector", VECTORS["ignored"], ids=named)
def test_ignored_vectors_are_counted(cipher, vector):
    before = cipher.ignored
    assert cipher.unseal(vector["text"], vector.get("code")) == ""
    assert cipher.ignored == before + 1


def test_mail_is_accepted_once_and_a_beacon_whenever_it_is_listed(cipher):
    beacon, mail, other = cipher.seal("b"), cipher.seal("m", "1"), cipher.seal("o", "2")
    texts = [(beacon, None), (beacon, None), (mail, "1"), (mail, "1"), (f"{mail} ", "1"), (other, "2")]
    assert [cipher.unseal(text, code) for text, code in texts] == ["b", "b", "m", "", "", "o"]


def test_mail_to_two_beacons_is_read_in_turns(cipher):
    texts = [(cipher.seal(code, code), code) for code in ("3", "4")]
    assert [cipher.unseal(text, code) for text, code in [*texts, *texts]] == ["3", "4", "", ""]
    cipher.forget("3")
    assert [cipher.unseal(text, code) for text, code in texts] == ["3", ""]


def test_equal_texts_are_encrypted_differently(cipher):
    assert cipher.seal("b") != cipher.seal("b")
