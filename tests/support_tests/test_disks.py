"""support.disks: a small disk is shrunk while somebody writes to it."""

import shutil
import threading

from support.disks import small_disk

MIB = 2**20


def test_a_disk_is_shrunk_while_a_file_on_it_grows(tmp_path):
    with small_disk(tmp_path) as (disk, leave):
        (disk / "kept").write_bytes(bytes(MIB))
        stop = threading.Event()

        def grow():
            while not stop.wait(0.01):
                try:
                    (disk / "log").write_bytes(bytes(16 * MIB))
                except OSError:  # the disk is full
                    continue

        writer = threading.Thread(target=grow)
        writer.start()
        try:
            for _ in range(40):
                leave(0)
                leave(40)
        finally:
            stop.set()
            writer.join()
        leave(3)
        assert shutil.disk_usage(disk).free == 3 * MIB
