"""How many files of psched a due task, and a command, goes through; and the CPU time of commands.

A reader who wants to know what happens to a task opens these files. The ceilings are those that the
project has set itself; a figure above its ceiling is work to be done.
"""

import atexit
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleet import Fleet
    from harness import Sample

CEILINGS = {
    "worker": {"files": 40, "calls": 300, "depth": 18},
    "runner": {"files": 12},
    "add": {"files": 50, "modules": 120},
    "list": {"files": 50, "modules": 120, "of_sqlalchemy": 1.3},
    "status": {"of_help": 1.4},
    "help": {"modules": 25},
}

_FOLDER = "PSCHED_JOURNEY"
"""The environment variable with the folder in which processes note what they went through."""

_CUSTOMIZE = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import journey
journey.Recorder(os.environ[{_FOLDER!r}]).begin()
"""


class Recorder:
    """Records which functions of psched call each other, in a process and its children.

    A worker's record is from the claim of a row to its settlement. Other records are of all that a
    process has called since it was started or forked.

    Args:
        folder: the folder in which each record becomes a file.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._files: dict[CodeType, str] = {}
        self._stack: list[CodeType] = []
        self._pid = os.getpid()
        self._holds = False
        self._forget()

    def begin(self) -> None:
        """Record from now on."""
        atexit.register(self._write, "ended")
        sys.setprofile(self._note)

    def _forget(self) -> None:
        self._seen = set[str]()
        self._calls = Counter[tuple[str, str]]()
        self._depth, self._base = 0, len(self._stack)

    def _file(self, code: CodeType) -> str:
        """The file of a function of psched; empty for others."""
        if (file := self._files.get(code)) is None:
            _, found, path = code.co_filename.rpartition("/psched/")
            # The code of a module or a class is executed when it is imported.
            is_function = code.co_flags & inspect.CO_OPTIMIZED
            file = self._files[code] = path if found and is_function else ""
        return file

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:  # noqa: ANN401
        if event == "c_call":
            if arg is os._exit:
                self._write("exit")
            return
        code = frame.f_code
        if event not in {"call", "return"} or not (file := self._file(code)):
            return
        if os.getpid() != self._pid:
            self._pid = os.getpid()
            self._forget()
        if event == "call":
            self._called(code, file)
        else:
            self._returned(code, arg)

    def _called(self, code: CodeType, file: str) -> None:
        if code.co_qualname == "SqlStore.claim" and not self._holds:
            self._forget()
        self._seen.add(file)
        if self._stack and (caller := self._file(self._stack[-1])) != file:
            self._calls[caller, file] += 1
        self._stack.append(code)
        self._depth = max(self._depth, len(self._stack) - self._base)

    def _returned(self, code: CodeType, result: Any) -> None:  # noqa: ANN401
        if self._stack and self._stack[-1] is code:
            self._stack.pop()
        if code.co_qualname == "SqlStore.claim" and result is not None and result.rows:
            self._holds = True
        if code.co_qualname in {"SqlStore.settle", "SqlStore.settle_and_claim"} and self._holds:
            self._holds = False
            self._write("settled")

    def _write(self, why: str) -> None:
        sys.setprofile(None)
        record = {
            "why": why,
            "files": sorted(self._seen),
            "calls": self._calls.total(),
            "depth": self._depth,
            "modules": sum(name.partition(".")[0] == "psched" for name in sys.modules),
        }
        name = f"{why}.{os.getpid()}.json"
        (self._folder / f"{name}.new").write_text(json.dumps(record))
        (self._folder / f"{name}.new").rename(self._folder / name)
        sys.setprofile(self._note)


def main() -> None:
    """Measure, and print JSON."""
    # Imported here, so that a process that is recorded imports only what it needs.
    import harness  # noqa: PLC0415

    parser = harness.options(__doc__, runs=5, kinds=("sqlite",))
    parser.set_defaults(databases=["sqlite"])
    given = harness.parsed(parser)
    harness.report("journey", given, lambda _kind, url, folder: measured(given, url, folder))


def measured(given: Any, url: str, folder: Path) -> dict[str, Any]:  # noqa: ANN401
    """The figures, and the ceilings of those that have one."""
    import harness  # noqa: PLC0415
    from fleet import Fleet  # noqa: PLC0415

    with Fleet(folder, url) as fleet:
        found = {
            **_task(fleet),
            "add": _command(fleet, "add", "k", "@daily", "--", "true"),
            "list": _command(fleet, "list"),
            "help": _command(fleet, "--help"),
        }
        samples = harness.rounds(
            given.rounds,
            {
                "sqlalchemy": lambda: _cpu(fleet, "-c", "import sqlalchemy"),
                "help": lambda: _cpu(fleet, *_PSCHED, "--help"),
                "list": lambda: _cpu(fleet, *_PSCHED, "-c", fleet.config.name, "list"),
                "status": lambda: _cpu(fleet, *_PSCHED, "-c", fleet.config.name, "status"),
            },
        )
    found["list"]["of_sqlalchemy"] = harness.of(samples, "list", "cpu_ms", "sqlalchemy")
    found["status"] = {"of_help": harness.of(samples, "status", "cpu_ms", "help")}
    return {name: {**each, "ceilings": CEILINGS[name]} for name, each in found.items()}


_PSCHED = ("-m", "psched")


def _task(fleet: "Fleet") -> dict[str, dict[str, Any]]:
    """What a due task goes through, in its worker and in its runner."""
    with _recorded(fleet) as records:
        # The first tasks import what the last one no longer needs to import. Meanwhile the workers
        # do what follows their start.
        fleet.push(["first"])
        fleet.launch()
        ended = fleet.wait_for_ends("first", ["first"])
        for key in "second", "third", "fourth", "last":
            fleet.push([key])
            ended = fleet.wait_for_ends(key, [key], ended)
        fleet.stop()
        worker = _last(records, "settled")
        runner = _last(records, "exit", of_runner=True)
    return {"worker": _counted(worker), "runner": _counted(runner)}


def _command(fleet: "Fleet", *arguments: str) -> dict[str, Any]:
    """What a command goes through."""
    with _recorded(fleet) as records:
        _cpu(fleet, *_PSCHED, "-c", fleet.config.name, *arguments)
        record = _last(records, "ended")
    return {"files": len(record["files"]), "modules": record["modules"]}


@contextmanager
def _recorded(fleet: "Fleet") -> "Iterator[Path]":
    """What is started meanwhile writes its records into the folder."""
    records = Path(tempfile.mkdtemp(prefix="records-", dir=fleet.folder))
    (records / "sitecustomize.py").write_text(_CUSTOMIZE)
    before = fleet.env.copy()
    fleet.env |= {"PYTHONPATH": str(records), _FOLDER: str(records)}
    try:
        yield records
    finally:
        fleet.env = before


def _last(records: Path, why: str, *, of_runner: bool = False) -> dict[str, Any]:
    """The last record of a kind, or the last of a runner that has run a task."""
    found = sorted(records.glob(f"{why}.*.json"), key=lambda path: path.stat().st_mtime_ns)
    read = [json.loads(path.read_text()) for path in found]
    # A fork server runs a task, too, before it forks.
    return next(
        each
        for each in reversed(read)
        if not of_runner
        or (
            {"application/task.py", "runner/runner.py"} <= {*each["files"]}
            and "runner/rehearsal.py" not in each["files"]
        )
    )


def _counted(record: dict[str, Any]) -> dict[str, Any]:
    return {"files": len(record["files"]), "calls": record["calls"], "depth": record["depth"]}


def _cpu(fleet: "Fleet", *arguments: str) -> "Sample":
    """Milliseconds of processor time of a Python with these arguments."""
    import harness  # noqa: PLC0415

    command = [harness.Measured.python, *arguments]
    process = subprocess.Popen(command, cwd=fleet.folder, env=fleet.env, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return {"cpu_ms": 1000 * (usage.ru_utime + usage.ru_stime)}


if __name__ == "__main__":
    main()
