"""Files of a data directory: handed over, measured."""

import os
import threading

import pytest

from tornado_signal.stores.leveldb import files


@pytest.mark.needs("root")
def test_files_made_by_root_belong_to_the_owner(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    os.chown(path, 4711, 4712)

    def make(name):
        (path / name).write_text("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), files.owned(path):
        make("file")
    assert [(each.stat().st_uid, each.stat().st_gid) for each in (path, path / "file")] == [(4711, 4712)] * 2


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
