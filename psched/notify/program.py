"""Runs a program for a hook, with a time limit; at its end, everything that it started is killed.

The monitor has threads, so it must not run Python code between fork and exec, and it cannot be the
parent of the program's orphans, because it runs several programs at the same time. So it starts a
guard, `psched.notify.guard`, a small process that does both.
"""

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import which

from psched.base.clock import Clock, SystemClock
from psched.base.file_rights import refusal_of_file
from psched.base.texts import brief
from psched.config.monitoring import CommandHook
from psched.notify import guard
from psched.notify.notification import DeliveryError, Notification
from psched.output.collector import Tail
from psched.reports.redaction import Redaction

TAIL = 500
"""The number of bytes of a failed program's output that the problem contains, the last ones."""

_GRACE = 10.0
"""Seconds that the guard gets to start, and to kill what is left, besides the time limit."""

_CHUNK = 65_536


def run(
    command: Sequence[str],
    content: bytes,
    environment: Mapping[str, str],
    *,
    seconds: float,
    redaction: Redaction,
    clock: Clock | None = None,
) -> None:
    """Run a program without a shell."""
    if (path := which(command[0])) and (reason := refusal_of_file(Path(path), owner=False)):
        raise DeliveryError(f"{command[0]} is not run: {reason}", retry=True)
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as report:
        try:
            process = subprocess.Popen(
                # -I and -S: neither the environment nor a package decides what the guard runs.
                [
                    *(sys.executable, "-I", "-S", guard.__file__, os.pathsep.join(sys.path)),
                    *(str(writer), str(os.getpid()), repr(seconds), *command),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,
                pass_fds=[writer],
            )
        except (OSError, ValueError) as error:
            problem = brief(f"{command[0]} cannot be started: {error}")
            raise DeliveryError(problem, retry=True) from None
        finally:
            os.close(writer)
        with process:
            try:
                output = _exchange(process, content, seconds + _GRACE, clock or SystemClock())
            finally:
                process.kill()  # it has ended, or hangs
                process.wait()
        # Only the guard has the other end, so this ends.
        how = report.read().decode(errors="replace")
    if how == guard.SUCCESS:
        return
    problem = f"{command[0]} {how or 'was interrupted'}"
    tail = brief(redaction.text(output.decode(errors="replace")))
    raise DeliveryError(brief(problem) + (f": {tail}" if tail else ""), retry=True)


def _exchange(
    process: subprocess.Popen[bytes], content: bytes, seconds: float, clock: Clock
) -> bytes:
    """Write the program's input, and return the end of its output."""
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise RuntimeError("no pipes")
    ends = clock.monotonic() + seconds
    tail = Tail(TAIL)
    left = memoryview(content)
    os.set_blocking(stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(stdin, selectors.EVENT_WRITE)
        while (wait := ends - clock.monotonic()) > 0:
            for key, _ in selector.select(wait):
                if key.fileobj is stdout:
                    chunk = os.read(stdout.fileno(), _CHUNK)
                    if not chunk:
                        return tail.take()
                    tail.add(chunk)
                    continue
                with suppress(BlockingIOError):
                    try:
                        left = left[os.write(stdin.fileno(), left[:_CHUNK]) :]
                    except BrokenPipeError:
                        left = left[:0]
                if not left:
                    selector.unregister(stdin)
                    with suppress(BrokenPipeError):
                        stdin.close()
    return tail.take()


def run_for(hook: CommandHook, notification: Notification) -> None:
    """Run the program of a hook; its exit status 0 means that the notification is delivered.

    The program gets the notification as JSON on its standard input, and as environment variables.
    No shell reads any of it.
    """
    run(
        hook.command,
        json.dumps(notification.body).encode() + b"\n",
        _environment(notification),
        seconds=hook.timeout,
        redaction=notification.redaction,
    )


def _environment(notification: Notification) -> Mapping[str, str]:
    body = notification.body
    alert = body["alert"]
    values = {
        "PSCHED_ID": body["id"],
        "PSCHED_EVENT": body["event"],
        "PSCHED_TEST": "1" if body["test"] else "",
        "PSCHED_TITLE": body["title"],
        "PSCHED_TEXT": body["text"],
        "PSCHED_INSTALLATION": body["installation"],
        "PSCHED_EXPLAIN": body["explain"],
        "PSCHED_RULE": alert["rule"],
        "PSCHED_KEY": alert["key"],
        "PSCHED_HOST": alert["host"],
        "PSCHED_TYPE": alert["type"],
        "PSCHED_LABEL": alert["label"],
        "PSCHED_SCHEDULED_TIME": alert["scheduled_time"],
        "PSCHED_SINCE": alert["since"],
    }
    return {name: value or "" for name, value in values.items()}
