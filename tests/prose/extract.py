"""Copies docstrings and comments into Markdown files that textlint checks: `python tests/prose/extract.py FOLDER`.

The line numbers stay: a message about `FOLDER/docstrings/path/module.py.md` is about the same line of `path/module.py`.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

# A Google-style section, or an item in one: each is a paragraph of its own.
ITEM = re.compile(r"\s*(?:(?:Args|Attributes|Raises|Returns|Yields|Example|Note):|[\w.*`]+(?: \([^)]*\))?: )")
# Directives for tools, shebangs and lines of dashes are not prose.
DIRECTIVE = re.compile(r"#!|#?\s*(?:noqa|type:|pragma|fmt:|biome-ignore|ruff:|mypy:|shellcheck|-+$|@)")
JAVASCRIPT_COMMENT = re.compile(r"/\*\*?(?P<block>.*?)\*/|(?<![:\"'`/])//(?P<line>[^\n]*)", re.DOTALL)
DOC_TAG = re.compile(r"\s*@(?:param|returns|type|typedef|property|template|import|this|throws|implements|extends)\b")


def python_docstrings(source):
    """Yield the line number and the text of each docstring line of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield from enumerate(docstring.split("\n"), node.body[0].lineno)


def python_comments(source):
    """Yield the line number and the text of each comment of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            yield token.start[0], token.string.lstrip("# ")


def javascript_comments(source):
    """Yield the line number and the text of each comment line of a script."""
    for match in JAVASCRIPT_COMMENT.finditer(source):
        first = source.count("\n", 0, match.start()) + 1
        for number, line in enumerate((match["block"] or match["line"]).split("\n"), first):
            text = DOC_TAG.split(re.sub(r"^\s*\* ?", "", line))[0]  # tags follow the description
            if text and not DIRECTIVE.match(text.strip()):
                yield number, text


def markdown(prose, length):
    """Return the texts as Markdown with `length` lines, one paragraph for each docstring section, item or comment."""
    lines = [""] * (length + 1)
    for number, text in prose:
        mark = "- " if ITEM.match(text) else ""
        lines[number] = mark + text.strip().replace("<", r"\<")
    return "\n".join(lines[1:]) + "\n"


def main(folder):
    names = subprocess.check_output(
        ["git", "ls-files", "*.py", "*.js", "*.ts", ":!*/vendor/*", ":!*/built/*"], text=True
    )
    for name in names.splitlines():
        source = Path(name).read_text()
        if name.endswith(".py"):
            prose = {"docstrings": python_docstrings(source), "comments": python_comments(source)}
        else:
            prose = {"comments": javascript_comments(source)}
        for kind, texts in prose.items():
            target = Path(folder, kind, name + ".md")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(markdown(texts, source.count("\n") + 1))


if __name__ == "__main__":
    main(sys.argv[1])
