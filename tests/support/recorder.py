"""A handler that records in the run log what happens to it; see `support.run_log`.

A copy of this file stands beside the run log in the folder of each service under test, as a user's
module would. The schedule's data say what the handler does:

==============  =================================================================================
``until``       wait until this file, in the same folder, exists
``processes``   start these first: "child", a subprocess; "daemon", one in a session of its own
``fail``        raise, in the first so many attempts
``kills``       KILL a process in the first ``times`` attempts: "worker", "server" (its fork
                server) or "runner"
``stubborn``    ignore TERM
==============  =================================================================================
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from psched.application import Base
from psched.application import Dispatch as BaseDispatch

FOLDER = Path(__file__).parent
RUN_LOG = FOLDER / "runs"


class RecorderError(Exception):
    """The schedule's data asked for a failure."""


class Recorder(Base):
    """Does what the schedule's data say, and records it."""

    def run(self) -> None:
        """Run the task."""
        data = self.task.data
        self.note("start", worker=self.worker)
        how = "unclear"
        try:
            for kind in data.get("processes", ()):
                self.start_process(kind)
            if self.task.attempt <= data.get("times", 0):
                pids = {"worker": self.worker, "server": os.getppid(), "runner": os.getpid()}
                os.kill(pids[data["kills"]], 9)
                signal.pause()
            if "until" in data:
                self.stay(FOLDER / data["until"])
            if self.task.attempt <= data.get("fail", 0):
                raise RecorderError("as it was told")  # noqa: TRY301  # it is to be noted
            how = "returned"
        except BaseException as error:
            how = f"{type(error).__name__}: {error}"
            raise
        finally:
            self.note("end", how=how)

    @property
    def worker(self) -> int:
        """The pid of the worker: the parent of the fork server, which is ours."""
        stat = Path(f"/proc/{os.getppid()}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])

    def stay(self, gate: Path) -> None:
        """Wait until a file exists."""
        if self.task.data.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while not gate.exists():
            self.note("alive")
            time.sleep(0.02)

    def start_process(self, kind: str) -> None:
        """Start a process that runs until somebody kills it."""
        program = str(FOLDER / "lasting_process.py")
        subprocess.Popen(
            [sys.executable, "-I", "-S", program, str(RUN_LOG), json.dumps(self.record)],
            start_new_session=kind == "daemon",
        )

    @property
    def record(self) -> dict[str, object]:
        """The run to which a note belongs."""
        task = self.task
        return {
            "key": task.key,
            "scheduled_time": task.scheduled_time,
            "attempt": task.attempt,
            "owner": task.token.owner,
            "fence": task.fence,
        }

    def note(self, event: str, **more: object) -> None:
        """Write a line; see `support.run_log.Run`."""
        line = self.record | {"event": event, "pid": os.getpid(), **more}
        line["at"] = time.clock_gettime(time.CLOCK_BOOTTIME)
        with RUN_LOG.open("ab", buffering=0) as log:
            log.write(f"{json.dumps(line)}\n".encode())


class Dispatch(BaseDispatch):
    """The route that all tests share; those of a single test are in a module of its own."""

    routes = {"recorder": Recorder}  # noqa: RUF012  # as users write it
