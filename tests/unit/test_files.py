"""Files and directories: made beside others, handed over, measured."""

import os
import threading

import pytest

from tornado_signal.errors import OperatorError
from tornado_signal.stores.leveldb import files


def test_scratch_is_private_beside_the_path_and_removed(tmp_path):
    path = tmp_path / "missing" / "data"
    with files.scratch(path) as made:
        assert made.parent == path.parent
        assert made.stat().st_mode & 0o777 == 0o700
        (made / "deep").mkdir()
        (made / "deep" / "file").write_text("x")
    with pytest.raises(ZeroDivisionError), files.scratch(path) as made:
        raise ZeroDivisionError
    assert list(path.parent.iterdir()) == []
    path.write_text("a file")
    with pytest.raises(OperatorError, match=r"cannot write beside .*data/below: .*; mend that"):
        files.scratch(path / "below").__enter__()


@pytest.mark.needs("root")
def test_files_made_by_root_belong_to_the_owner(tmp_path):
    path, other = tmp_path / "data", tmp_path / "other"
    path.mkdir()
    other.mkdir()
    os.chown(path, 4711, 4712)

    def make(name):
        (path / name).write_text("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), files.owned(path):
        make("file")
    assert [(each.stat().st_uid, each.stat().st_gid) for each in (path, path / "file")] == [(4711, 4712)] * 2
    with files.owned(other, path):
        (other / "deep").mkdir()
    assert [(each.stat().st_uid, each.stat().st_gid) for each in (other, other / "deep")] == [(4711, 4712)] * 2


def test_size_is_the_sum_of_files_even_while_some_vanish(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / "b").write_bytes(bytes(11))
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            (tmp_path / "c").touch()
            (tmp_path / "c").unlink()

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {files.size_bytes(tmp_path) for _ in range(500)} == {111}
    finally:
        stop.set()
        thread.join()
