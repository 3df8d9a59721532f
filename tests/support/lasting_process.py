"""A process that a handler starts: writes to the run log that it lives, until it is killed.

Its arguments are the run log's path and the note that it repeats.
"""

import json
import os
import sys
import time


def main() -> None:
    """Write the note again and again."""
    path, text = sys.argv[1:]
    record = {**json.loads(text), "event": "alive", "pid": os.getpid()}
    log = os.open(path, os.O_WRONLY | os.O_APPEND)
    while True:
        record["at"] = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(log, f"{json.dumps(record)}\n".encode())
        time.sleep(0.02)


if __name__ == "__main__":
    main()
