"""Files of a data directory: their size."""

import threading

from tornado_signal.stores.leveldb import files


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
