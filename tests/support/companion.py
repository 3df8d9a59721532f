"""A process that a task leaves behind: notes in the run log that it lives, until killed.

Its arguments are the path of the run log, and the record to which it adds a note.
"""

import json
import os
import sys
import time


def main() -> None:
    """The companion's whole life."""
    path, text = sys.argv[1:]
    record = {**json.loads(text), "event": "alive", "pid": os.getpid()}
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    while True:
        record["at"] = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(log, f"{json.dumps(record)}\n".encode())
        time.sleep(0.02)


if __name__ == "__main__":
    main()
