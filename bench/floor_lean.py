"""The yardstick ``lean`` of `floors.py`: a Python that has loaded nothing forks.

It is executed with ``-I -S``, and imports only what the interpreter is made of: some 8 MiB.
"""

import posix
import resource
import sys
import time


def spent() -> tuple[float, int]:
    """The seconds and the page faults of this process and its children that have ended."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in both)
    return cpu, sum(each.ru_minflt + each.ru_majflt for each in both)


def main() -> None:
    """Fork, exit and wait, so many times; the child writes a line."""
    count, notes, flags = int(sys.argv[1]), sys.argv[2], posix.O_WRONLY | posix.O_APPEND
    with open("/proc/self/statm", encoding="ascii") as pages:  # noqa: PTH123  # pathlib is large
        size = int(pages.read().split()[1]) * resource.getpagesize() / 2**20
    print(round(size, 1), flush=True)  # noqa: T201
    sys.stdin.readline()
    before, begin = spent(), time.time()
    for _ in range(count):
        pid = posix.fork()
        if pid == 0:
            file = posix.open(notes, flags | posix.O_CREAT, 0o600)
            posix.write(file, b"%.6f\n" % time.time())
            posix._exit(0)
        posix.waitpid(pid, 0)
    end, after = time.time(), spent()
    cpu, faults = after[0] - before[0], after[1] - before[1]
    told = f'"count": {count}, "begin": {begin}, "end": {end}, "cpu": {cpu}, "faults": {faults}'
    print(f"{{{told}}}", flush=True)  # noqa: T201


main()
