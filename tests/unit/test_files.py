"""Files of a data directory: ownership and size."""

import os
import threading

import pytest

from tornado_signal.stores.leveldb import files


@pytest.mark.needs("root")
def test_files_created_by_root_belong_to_the_owner_of_the_directory(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    os.chown(path, 4711, 4712)

    def make(name):
        (path / name).write_text("x")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), files.owned(path):
        make("file")
    assert [(item.stat().st_uid, item.stat().st_gid) for item in (path, path / "file")] == [(4711, 4712)] * 2


def test_size_is_the_sum_of_all_files_while_some_are_deleted(tmp_path):
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / "b").write_bytes(bytes(11))
    stop = threading.Event()

    def create_and_delete():
        while not stop.is_set():
            (tmp_path / "c").touch()
            (tmp_path / "c").unlink()

    thread = threading.Thread(target=create_and_delete)
    thread.start()
    try:
        assert {files.size_bytes(tmp_path) for _ in range(500)} == {111}
    finally:
        stop.set()
        thread.join()
