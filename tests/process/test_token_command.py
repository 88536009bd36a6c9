"""`tornado-signal token`, `--token-file`, and keys that are replaced while clients work (docs/authorization.md)."""

import time

import pytest
from support.command import CLIENT, call
from support.tokens import MAKERS, make_token, private_pem, public_pem, write_secret
from support.waiting import output

ALGORITHMS = ["HS256", *MAKERS]


@pytest.fixture(params=ALGORITHMS)
def pair(request, tmp_path):
    """The file that makes tokens, and the folder with the key that verifies them."""
    public = tmp_path / "public"
    if request.param == "HS256":
        return write_secret(public) / "main.secret", public
    public.mkdir()
    key = MAKERS[request.param]()
    (tmp_path / "main.pem").write_bytes(private_pem(key))
    (public / "main.pem").write_bytes(public_pem(key))
    return tmp_path / "main.pem", public


def check(token, *arguments):
    return call("token", "--check", *arguments, input=token.encode())


def test_server_accepts_the_token_and_check_explains_it(pair, start, tmp_path):
    signing, public = pair
    claims = ["--topic", "lobby", "--topic", "room~*", "--action", "list", "--sub", "alice", "--info", "Alice"]
    token = output(call("token", "--key", signing, *claims, "--ttl", "15m", "--issuer", "us", "--audience", "them"))
    explained = output(check(token, "--key", public, "--issuer", "us", "--audience", "them")).splitlines()
    assert explained[1] == "subject: alice"
    assert explained[3:] == ["actions: list", "topics: lobby, room~*", "info: Alice", "origin: any"]
    file = tmp_path / "token"
    file.write_text(token)
    server = start("--auth-keys", public, "--auth-issuer", "us", "--auth-audience", "them")
    for topic, flags, variables, status, text in (
        ("lobby", ["--token-file", file], {}, 0, ""),
        ("room~1", [], {"SIGNAL_TOKEN_FILE": str(file)}, 0, ""),
        ("attic", ["--token-file", file], {}, 1, "403 Not allowed by the token"),
        ("lobby", [], {}, 1, "401 Missing or invalid token"),
        ("lobby", ["--token-file", tmp_path / "none"], {}, 1, "cannot read the token"),
    ):
        done = call("sessions", topic, "--json", "--url", server.url, *flags, command=CLIENT, **variables)
        assert (done.returncode, done.stdout, text in done.stderr) == (status, "", True)


def test_check_says_why_a_token_is_refused(tmp_path):
    token = make_token({"exp": int(time.time()) + 86_400, "origin": "https://a.example"})
    refused = check(token, "--key", write_secret(tmp_path / "keys"), "--origin", "https://app.example")
    said = "tornado-signal: the server would refuse it: token for another origin\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (1, "", said)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([], 2, "--key"),
        (["--key", "none.secret"], 1, "cannot read the key none.secret"),
        (["--key", "none.pem"], 1, "cannot read the key none.pem"),
        (["--key", "public.pem"], 1, "not a private key"),
        (["--key", "main.secret", "--ttl", "5"], 2, "a time such as 90s, 15m, 1h or 7d"),
        (["--key", "main.secret", "--ttl", "3661d"], 1, "--ttl is more than ten years"),
        (["--key", "main.secret", "--action", "poll"], 2, "list or offer or answer"),
    ],
)
def test_unusable_arguments_are_explained(arguments, status, text, tmp_path):
    write_secret(tmp_path)
    (tmp_path / "public.pem").write_bytes(public_pem(MAKERS["EdDSA"]()))
    done = call("token", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (status, "")
    assert text in done.stderr
