"""Expected results for the requests in `http_corpus`, as described at `http_corpus.Kind`."""

from .http_corpus import KINDS

STRICTER = {name: kind.stricter for kind in KINDS if kind.stricter for name in kind.requests}
LAXER = {name: kind.laxer for kind in KINDS if kind.laxer for name in kind.requests}
DIFFERENT = {name: kind.different for kind in KINDS if kind.different for name in kind.requests}
REFUSED = {name: kind.status for kind in KINDS if kind.status for name in kind.requests}
ENDS = {name for kind in KINDS if kind.ends for name in kind.requests}
