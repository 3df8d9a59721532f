"""Mutants: copies of psched with one fault each, which a simulation or a test has to notice.

``tests/mutants/mutants.txt`` lists them, one on each line, and describes their fields. Others are
drawn from those that cosmic-ray makes of the files in `DRAWN`. ``bin/mutants`` runs them.
"""

import difflib
import json
import os
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from support.session_folders import storage

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests/mutants/mutants.txt"
SURVIVORS = ROOT / "tests/mutants/survivors.txt"

_LOCAL = "not mariadb and not postgresql and not redis and not dynamodb"
"""The marks of tests that start no server."""

DRAWN = {
    "base/lease_times.py": "pytest tests/unit/test_lease_times.py",
    "core/policy.py": "pytest tests/unit/test_policy.py tests/unit/test_fates.py",
    "core/catchup.py": "pytest tests/unit/test_policy.py tests/unit/test_fates.py",
    "core/attempts.py": "pytest tests/unit/test_attempts.py tests/unit/test_policy.py",
    "core/settling.py": "pytest tests/unit/test_settling.py",
    "core/local_times.py": "pytest tests/unit/test_local_times.py tests/unit/test_renewed_times.py",
    "triggers/cron.py": "pytest tests/unit/test_trigger.py tests/unit/test_wall_times.py"
    " tests/unit/test_preview.py",
    "triggers/trigger.py": "pytest tests/unit/test_custom_trigger.py tests/unit/test_foreign.py"
    " tests/unit/test_trigger.py",
    "triggers/zone.py": "pytest tests/unit/test_zone.py",
    "triggers/custom.py": "pytest tests/unit/test_custom_trigger.py",
}
"""The files of which cosmic-ray makes mutants, and what has to notice them."""

BUDGET = 120
"""The most seconds of CPU time for one killer, unless the list says otherwise."""

_DRAWN_BUDGET = 60
"""The most seconds of CPU time for the tests of a drawn mutant. They take 20 s at most, unless the
mutant makes them run for ever."""

_SLOWNESS = 20
"""How many seconds a killer may take for each second of its budget, before it counts as hung."""

SURVIVED = "SURVIVED"

_LAUNCH = """
import importlib.util, runpy, sys
package, sys.argv = sys.argv[1], sys.argv[2:]
found = importlib.util.find_spec("psched").submodule_search_locations
assert found == [package], found
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Runs a module, if psched is imported from the given folder. Its other modules then are, too."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault.

    Attributes:
        name: says what is broken.
        file: the file, relative to ``psched``.
        old: the text that is replaced; it occurs once in the file.
        new: what replaces it.
        killer: what has to fail: ``simulate``, ``simulate-sqlite`` or ``pytest``, and arguments.
        budget: the most seconds of CPU time.
    """

    name: str
    file: str
    old: str
    new: str
    killer: str
    budget: int = BUDGET

    def problem(self) -> str | None:
        """Why this is no mutant of psched as it is now; None if it is one."""
        text = (ROOT / "psched" / self.file).read_text()
        number = text.count(self.old)
        if number != 1:
            return f"its old text occurs {number} times in {self.file}"
        try:
            compile(text.replace(self.old, self.new), self.file, "exec")
        except SyntaxError as error:
            return str(error)
        return "it changes nothing" if self.old == self.new else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What has become of a mutant, or of psched itself.

    Attributes:
        found: what the killer has found; None if it has passed.
        cpu: how many seconds of CPU time it took.
        failure: why nothing is known, such as an exceeded budget; None if something is.
    """

    found: str | None
    cpu: float
    failure: str | None = None


def read() -> list[Mutant]:
    """All mutants of the list."""
    lines = (line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return [_parse(line) for line in lines]


def drawn(number: int | None, seed: str, files: Sequence[str]) -> list[Mutant]:
    """Some of the mutants that cosmic-ray makes, or all if there is no number.

    Their names are the changed lines.
    """
    venv = subprocess.check_output([ROOT / "bin/venv", "mutants"], text=True).strip()
    maker = [f"{venv}/bin/python", ROOT / "tests/support/drawn_mutants.py"]
    paths = [str(ROOT / "psched" / file) for file in files]
    made = subprocess.check_output([*maker, *paths], text=True).splitlines()
    if number is not None and number < len(made):
        made = random.Random(seed).sample(made, number)  # noqa: S311
    return [_drawn(*json.loads(line)) for line in made]


def _drawn(path: str, new: str) -> Mutant:
    file, old = str(Path(path).relative_to(ROOT / "psched")), Path(path).read_text()
    changes = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
    lines = [f"{line[0]} {line[1:].strip()}" for line in changes if line[:3] not in _HEADS]
    return Mutant(f"{file} {' '.join(lines)}", file, old, new, DRAWN[file], _DRAWN_BUDGET)


_HEADS = "---", "+++", "@@ "


def explained() -> dict[str, str]:
    """The mutants that cannot be noticed, by name, and why not."""
    lines = (line for line in SURVIVORS.read_text().splitlines() if line and line[0] != "#")
    return dict(line.split(" :: ") for line in lines)


def _parse(line: str) -> Mutant:
    name, file, old, new, killer, *budget = (
        field.strip().replace(r"\n", "\n") for field in line.split(" :: ")
    )
    return Mutant(name, file, old, new, killer, *map(int, budget))


@contextmanager
def mutated(mutant: Mutant | None) -> Iterator[Path]:
    """A folder with a copy of psched, in which the mutant's text is replaced."""
    with tempfile.TemporaryDirectory(prefix="psched-mutant-", dir=storage()) as folder:
        copy = Path(folder, "psched")
        shutil.copytree(ROOT / "psched", copy)
        if mutant is not None:
            file = copy / mutant.file
            file.write_text(file.read_text().replace(mutant.old, mutant.new))
            shutil.rmtree(file.parent / "__pycache__", ignore_errors=True)
        yield Path(folder)


def run(killer: str, budget: int = BUDGET, mutant: Mutant | None = None) -> Verdict:
    """Run a killer on psched, or on a mutant of it."""
    tool, *arguments = killer.split()
    options = {
        "simulate": ["psched.testing.simulation", "--no-shrink"],
        "simulate-sqlite": ["psched.testing.simulation", "--no-shrink", "--store", "sqlite"],
        "pytest": ["pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", _LOCAL],
    }[tool]
    with mutated(mutant) as folder, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            # -P: the current directory, which has psched itself, is not searched.
            [sys.executable, "-P", "-c", _LAUNCH, folder / "psched", *options, *arguments],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": str(folder),
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PSCHED_TEST_NO_SERVERS": "1",
            },
        )
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (budget, budget))
        status, cpu = _wait(process, budget * _SLOWNESS)
        output.seek(0)
        printed = output.read()
    if status == -signal.SIGKILL:
        return Verdict("it does not end", cpu)
    # pytest's exit status then is that of a test that does not exist. Only a traceback names files.
    if mutant is not None and status in {2, 4} and f"/{folder.name}/psched/" in printed:
        return Verdict("its tests cannot be imported", cpu)
    if status not in {0, 1}:  # such as a test that does not exist
        return Verdict(None, cpu, f"exit status {status}: {printed[-500:]}")
    return Verdict(_reason(printed, is_test=tool == "pytest") if status else None, cpu)


def _wait(process: "subprocess.Popen[str]", seconds: float) -> tuple[int, float]:
    """Wait for a process; return its exit status and the CPU time of it and its children."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            process.kill()
        _, status, usage = os.wait4(process.pid, 0)
    finally:
        os.close(descriptor)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def _reason(printed: str, *, is_test: bool) -> str:
    """What a killer has found, in a few words."""
    lines = printed.splitlines()
    if is_test:
        failed = [
            line.split()[1] for line in lines if line.startswith(("FAILED tests", "ERROR tests"))
        ]
        return failed[0].rpartition("/")[2] if failed else lines[-1]
    # A simulation prints "  overlap: s3: ..." for each violation.
    kinds = {line.split(":")[0].strip() for line in lines if re.match(r"  \w+: ", line)}
    return ", ".join(sorted(kinds)) or lines[-1]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--list", "lists", is_flag=True)
@click.option("--drawn", "number", type=int, help="0 means all")
@click.option("--seed", default="1")
@click.option("--file", "files", multiple=True, type=click.Choice([*DRAWN]))
def main(
    names: Sequence[str], number: int | None, seed: str, files: Sequence[str], *, lists: bool
) -> None:
    """Run mutants by name, all of the list, or drawn ones."""
    if number is None:
        mutants = [mutant for mutant in read() if mutant.name in names or not names]
        wrong = {*names} - {mutant.name for mutant in mutants}
    else:
        mutants, wrong = drawn(number or None, seed, files or [*DRAWN]), {*names}
    if lists:
        click.echo("\n".join(mutant.name for mutant in mutants))
        return
    problems = [f"{name}: no such mutant" for name in sorted(wrong)]
    problems += [f"{each.name}: {problem}" for each in mutants if (problem := each.problem())]
    if problems:
        click.echo("\n".join(problems), err=True)
        sys.exit(2)
    known = explained()
    with ThreadPoolExecutor(2) as pool:
        # Each killer has to pass on psched itself. Several mutants can have the same one.
        budgets = {each.killer: each.budget for each in mutants}
        passed = [*pool.map(_passes, budgets, budgets.values())]
        if not all(passed):
            sys.exit(2)
        rows = [*pool.map(lambda mutant: _row(mutant, known.get(mutant.name)), mutants)]
    survivors = sorted(row for row in rows if row.startswith(SURVIVED))
    click.echo("\n".join(["", *survivors]))
    click.echo(f"\n{len(rows)} mutants, {len(survivors)} survived")
    sys.exit(int(bool(survivors)))


def _passes(killer: str, budget: int) -> bool:
    verdict = run(killer, budget)
    wrong = verdict.found or verdict.failure
    click.echo(f"{verdict.cpu:6.1f} s  {killer}: {wrong or 'passes without a mutant'}")
    return wrong is None


def _row(mutant: Mutant, why_not: str | None) -> str:
    verdict = run(mutant.killer, mutant.budget, mutant)
    fate = "killed  "
    if verdict.found is None:
        fate = SURVIVED if why_not is None else "equal   "
    by = verdict.found or verdict.failure or why_not or mutant.killer
    row = f"{fate} {verdict.cpu:6.1f} s  {mutant.name}: {by}"
    click.echo(row)
    return row


if __name__ == "__main__":
    main()
