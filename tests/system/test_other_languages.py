"""The peers of docs/other-languages.md that can be built here, each with each."""

import os
import re
import subprocess

import pytest
from support import libraries
from support.documents import all_blocks, pages
from support.paths import ROOT
from support.waiting import end_all, kill, output, run_command

EXAMPLES = ROOT / "examples" / "languages"
MAX_LINES = 60
# Debian's packages of pion are below the last folder, and have no version in their path.
GO = {"GO111MODULE": "off", "GOPATH": "{folder}:/usr/share/gocode", "GOCACHE": "{folder}/cache"}


@pytest.fixture
def commands(tmp_path):
    source = tmp_path / "src" / "peer"
    source.mkdir(parents=True)
    (source / "peer.go").write_text((EXAMPLES / "peer.go").read_text())
    (source / "go.mod").write_text("module peer\n")
    go = {name: value.format(folder=tmp_path) for name, value in GO.items()}
    output(run_command("go", "build", "-o", tmp_path / "go", ".", cwd=source, env=os.environ | go))
    output(run_command("/usr/bin/rustc", "--edition=2021", "-o", tmp_path / "rust", EXAMPLES / "peer.rs"))
    (tmp_path / "node_modules").symlink_to(libraries.node_modules())
    (tmp_path / "peer.mjs").write_text((EXAMPLES / "peer.mjs").read_text())
    return {"go": [tmp_path / "go"], "rust": [tmp_path / "rust"], "node": ["node", tmp_path / "peer.mjs"]}


@pytest.mark.slow
@pytest.mark.timeout(900)  # Go compiles its standard library
@pytest.mark.needs("go", "/usr/bin/rustc", "/usr/share/gocode/src/github.com/pion/webrtc", "cc", "node")
def test_peers_in_other_languages_connect_with_each_other(commands, start, subtests):
    url = start().url

    def arguments(language, role, topic):
        return [*commands[language], role, url, "https://app.example", topic]

    with end_all(subprocess.Popen, kill) as open_process:
        for one, other in (("go", "go"), ("go", "node"), ("node", "go")):
            with subtests.test(offer=one, answer=other):
                open_process(arguments(other, "answer", f"{one}-{other}"))
                offering = open_process(arguments(one, "offer", f"{one}-{other}"), stdout=subprocess.PIPE, text=True)
                assert offering.stdout.readline() == "hello\n"
        with subtests.test("rust"):
            texts = [f'{role} {{"sdp":"v=0\\r\\n\\"é\\\\"}}\n' for role in ("offer", "answer")]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            answering, offering = (open_process(arguments("rust", role, "r"), **pipes) for role in ("answer", "offer"))
            for process, own in zip((offering, answering), texts, strict=True):
                process.stdin.write(own)
                process.stdin.flush()
            assert [answering.stdout.readline(), offering.stdout.readline()] == texts


def test_each_example_has_at_most_60_lines_of_code():
    shown = [text for language, text in all_blocks(pages()["other-languages"]) if language]
    examples = [*shown, *(path.read_text() for path in EXAMPLES.iterdir())]
    assert len(examples) == 6
    counts = [len(re.findall(r"^\s*(?!//|#)\S", text, re.MULTILINE)) for text in examples]
    assert max(counts) <= MAX_LINES
