"""Texts of room members: names, signatures, passwords and JSON, most of them vectors for both languages."""

import json
from pathlib import Path

import pytest

from tornado_signal_client import SignalError
from tornado_signal_client.api import topic_of
from tornado_signal_client.names import Cipher, Identity
from tornado_signal_client.parsing import MAX_DEPTH, MAX_VALUES, checked, parse_json, parse_object
from tornado_signal_client.records import Mail, decode_beacon
from tornado_signal_client.verification import verification

VECTORS = json.loads((Path(__file__).parents[1] / "room-vectors.json").read_text())
ORIGIN, TOPIC = VECTORS["origin"], VECTORS["topic"]
SECRET = VECTORS["password"]
NO_JSON = [*VECTORS["no json"], "1e400", "[" + "1," * MAX_VALUES + "1]", b'"\xed\xa0\xbd"']
NO_JSON += ["[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "[" * 10**5]
# Generated with the browser module.
ID = "@O1ZyULHK0Ga4kOVyCnu8rGM7060oMaG5JAo2_IwFrnE"
ALICE = Identity(ORIGIN, TOPIC, "Alice 世界", "of Alice")
READER = Identity(ORIGIN, TOPIC, None, None)


def named(vector):
    return vector["what"]


def fields_of(text, sender, *to):
    return READER.unseal(text, sender, dict, *to)


def test_name_is_received_only_with_a_signature():
    beacon = ALICE.seal({"id": ALICE.id, "at": 1})
    assert beacon[86] == "{"
    assert fields_of(beacon, "id") == {"id": ID, "at": 1, "me": "Alice 世界"}
    mail = ALICE.seal({"from": ALICE.id}, READER.id)
    assert fields_of(mail, "from", READER.id) == {"from": ID, "me": "Alice 世界"}
    plain = json.dumps({"id": "plain", "me": "Alice 世界"})
    assert fields_of(plain, "id") == {"id": "plain"}


def test_key_of_a_visit_is_used_whatever_its_sign_is():
    for _ in range(20):
        member = Identity(ORIGIN, TOPIC, None, None)
        assert fields_of(member.seal({"id": member.id}), "id") == {"id": member.id}
        assert fields_of(READER.seal({"id": member.id}), "id") is None


def test_invalid_names_are_dropped_and_those_without_a_secret_or_too_long_refused():
    for name in (7, None, "", "x" * 257, "😀" * 129):
        sealed = Identity(ORIGIN, TOPIC, None, "of Alice").seal({"from": ID, "me": name}, "x", "c")
        assert fields_of(sealed, "from", "x", "c") == {"from": ID}
    with pytest.raises(ValueError, match="a name needs a secret"):
        Identity(ORIGIN, TOPIC, "Alice", None)
    with pytest.raises(ValueError, match="one to 256 characters"):
        Identity(ORIGIN, TOPIC, "x" * 257, "of Alice")
    Identity(ORIGIN, TOPIC, "x" * 256, "of Alice")


def unseal_vector(vector, origin=ORIGIN):
    """Return the fields of a text, or None if no member accepts it."""

    def decode(fields):
        if vector["kind"] == "mail":
            return checked(fields, Mail)
        info = None if "info" in fields else "info of the session"
        return decode_beacon(fields, "code", info, vector["createdAt"]) and fields

    sender = "from" if vector["kind"] == "mail" else "id"
    reader = Identity(origin, TOPIC, None, None)
    return reader.unseal(vector["text"], sender, decode, vector["to"], vector["code"])


@pytest.mark.parametrize("vector", [*VECTORS["accepted"], *VECTORS["ignored"]], ids=named)
def test_accepted_and_ignored_vectors(vector):
    is_accepted = vector in VECTORS["accepted"]
    assert unseal_vector(vector) == (vector["fields"] if is_accepted else None)
    if is_accepted and vector["text"][0] != "{":
        assert unseal_vector(vector, "https://other.example") is None


@pytest.mark.parametrize("vector", VECTORS["verified"], ids=named)
def test_number_of_a_connection_is_that_of_the_browser_module(vector):
    members = [(member["id"], member["sdp"]) for member in vector["members"]]
    assert verification(READER.scope, members) == (vector["emoji"], vector["digits"])
    for other in (Identity(ORIGIN, "room~other", None, None), Identity("https://other.example", TOPIC, None, None)):
        assert verification(other.scope, members).digits != vector["digits"]


@pytest.mark.parametrize("vector", VECTORS["not verified"], ids=named)
def test_description_without_exactly_one_fingerprint_has_no_number(vector):
    good = VECTORS["verified"][0]["members"][0]
    for members in ([("a", vector["sdp"]), (good["id"], good["sdp"])], [("a", good["sdp"]), ("b", vector["sdp"])]):
        with pytest.raises(SignalError) as caught:
            verification(READER.scope, members)
        assert caught.value.code == "not-verifiable"


@pytest.fixture(scope="module")
def cipher():
    return Cipher(ORIGIN, topic_of(SECRET["room"]), SECRET["password"])


def test_topics_and_ids_are_those_of_the_browser_module_and_ids_depend_on_the_secret_only():
    assert ALICE.id == Identity(ORIGIN, "room~other", None, "of Alice").id == ID
    assert Identity(ORIGIN, TOPIC, None, "of Bob").id != ID
    plain = {Identity(ORIGIN, TOPIC, None, None).id for _ in range(10)}
    assert (len(plain), {id_[0] for id_ in plain}) == (10, {"$"})
    assert [topic_of(room) for room, _ in VECTORS["topics"]] == [topic for _, topic in VECTORS["topics"]]
    for vector in VECTORS["identities"]:
        assert Identity(ORIGIN, TOPIC, None, vector["secret"]).id == vector["id"]
    for vector in [SECRET, *SECRET["others"]]:
        cipher = Cipher(vector.get("origin", ORIGIN), topic_of(SECRET["room"]), vector["password"])
        assert cipher.topic == vector["topic"], vector


@pytest.mark.parametrize("vector", [*SECRET["accepted"], *SECRET["ignored"]], ids=named)
def test_accepted_vectors_with_a_password_and_ignored_ones_which_are_counted(cipher, vector):
    before, is_accepted = cipher.ignored, vector in SECRET["accepted"]
    assert cipher.unseal(vector["text"], vector.get("code")) == (vector["plain"] if is_accepted else "")
    assert cipher.ignored == before + (not is_accepted)


def test_mail_is_accepted_once_and_a_beacon_whenever_it_is_listed(cipher):
    beacon, mail, other = cipher.seal("b"), cipher.seal("m", "1"), cipher.seal("o", "2")
    texts = [(beacon, None), (beacon, None), (mail, "1"), (mail, "1"), (f"{mail} ", "1"), (other, "2"), (mail, "1")]
    assert [cipher.unseal(text, code) for text, code in texts] == ["b", "b", "m", "", "", "o", ""]
    cipher.forget("1")
    assert [cipher.unseal(text, code) for text, code in texts[-2:]] == ["", "m"]
    assert cipher.seal("b") != beacon


def test_json_that_can_be_sent_is_a_value():
    for text, value in VECTORS["json"]:  # half of a surrogate pair is replaced
        assert parse_json(text) == parse_json(text.encode()) == value
    assert json.dumps(parse_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)).count("[") == MAX_DEPTH
    assert [parse_object(text) for text in ("[1]", "1", "no JSON")] == [{}] * 3


@pytest.mark.parametrize("text", NO_JSON, ids=lambda text: text[:10])
def test_value_that_could_not_be_sent_is_an_error(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)
