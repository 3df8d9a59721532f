"""Runs a command on a terminal of its own, as a terminal's window does.

    python -I -S on_terminal.py FIFO COMMAND...

The command leads the terminal's session. What it shows goes to standard output. What is written to
the FIFO is typed; a zero byte closes the terminal, and a byte 1, ROWSxCOLUMNS and a line feed, all
written at once, set the size of the window. The exit status is the command's.
"""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
from pathlib import Path


def main() -> None:
    """Start the command, and pass on what is typed and shown until it has ended."""
    fifo, *command = sys.argv[1:]
    os.mkfifo(f"{fifo}.new")
    typed = os.open(f"{fifo}.new", os.O_RDWR)
    Path(f"{fifo}.new").rename(fifo)  # a test that finds it can write to it
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)  # noqa: S606  # there is no shell
    ready = select.poll()
    ready.register(typed, select.POLLIN)
    ready.register(terminal, select.POLLIN)
    while True:
        readable = [descriptor for descriptor, _ in ready.poll()]
        if terminal in readable:
            try:
                os.write(1, os.read(terminal, 4096))
            except OSError:
                break  # nobody has the terminal open any more
        if typed in readable:
            keys = os.read(typed, 4096)
            if b"\0" in keys:
                os.close(terminal)
                break
            if size := re.fullmatch(rb"\x01(\d+)x(\d+)\n", keys):
                window = struct.pack("HHHH", int(size[1]), int(size[2]), 0, 0)
                fcntl.ioctl(terminal, termios.TIOCSWINSZ, window)
                continue
            os.write(terminal, keys)
    _, status = os.waitpid(pid, 0)
    sys.exit(os.waitstatus_to_exitcode(status) % 256)


if __name__ == "__main__":
    main()
