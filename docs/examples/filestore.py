"""A custom store: all schedules in one JSON file, for a few schedules on one host."""

import fcntl
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from psched.errors import StoreError, StoreUnavailableError
from psched.model import Row
from psched.stores.plain import PlainStore


class FileStore(PlainStore):
    def __init__(self, settings, *, clock, rng):
        self.path = Path(settings.store["path"])
        self.only = settings.only
        self.host_names = settings.host_names

    @contextmanager
    def all(self):
        try:
            with self.path.with_suffix(".lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                stored = json.loads(self.path.read_text()) if self.path.exists() else []
                before = {row["key"]: Row(**row) for row in stored}
                rows = dict(before)
                yield rows
                if rows != before or not self.path.exists():
                    self.write(rows.values())
        except OSError as error:
            raise StoreUnavailableError(f"{self.path}: {error}") from error
        except (ValueError, TypeError) as error:
            raise StoreError(f"{self.path} holds no schedules: {error}") from error

    def write(self, rows):
        # Renamed when it is complete: after a crash, a reader finds the old file or the new one.
        new = self.path.with_suffix(".new")
        with new.open("w") as file:
            json.dump([asdict(row) for row in rows], file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def now(self):
        return time.time()

    def examine(self):
        return [("store", str(self.path))]
