"""How much CPU time each test costs, with all the processes that it starts: pytest's ``--cpu``.

A wall clock says little where tests wait, and where several run at a time; what counts for who
runs them all is the CPU time. The servers of the session are counted, too: each test costs what
they did during it.
"""

import os
import resource
from collections import defaultdict
from pathlib import Path

import pytest

_TICKS = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption(
        "--cpu",
        type=int,
        metavar="N",
        help="show the CPU time of the tests' files, and of the N tests that need most",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure if asked to."""
    if config.getoption("cpu"):
        config.pluginmanager.register(_Meter())


class _Meter:
    """Notes at the end of each test what has been used since the one before it."""

    def __init__(self) -> None:
        self._before = used()
        self._tests: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self):
        report = yield
        if report.when == "teardown":
            # The kernel may leave out children while others end: then it was less for a moment.
            now = max(used(), self._before)
            report.cpu = now - self._before
            self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] += getattr(report, "cpu", 0.0)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        files: dict[str, float] = defaultdict(float)
        for test, seconds in self._tests.items():
            files[test.partition("::")[0]] += seconds
        for title, found, most in (
            ("files", files, len(files)),
            ("tests", self._tests, config.getoption("cpu")),
        ):
            terminalreporter.section(f"CPU seconds of {title}")
            for name in sorted(found, key=found.__getitem__, reverse=True)[:most]:
                terminalreporter.write_line(f"{found[name]:8.2f}  {name}")
        own, ended = (
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        total = sum(usage.ru_utime + usage.ru_stime for usage in (own, ended))
        measured = sum(self._tests.values())
        terminalreporter.write_line(f"{measured:8.2f}  all tests; {total:.2f} with pytest's own")


def used() -> float:
    """CPU seconds of this process and of all that came of it, whether it has ended or not."""
    times = os.times()
    return sum(times[:4]) + sum(_of_tree(child) for child in _children(os.getpid()))


def _of_tree(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS + sum(map(_of_tree, _children(pid)))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found
