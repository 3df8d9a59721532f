"""A master that is told to stop before it has loaded what it is made of."""

import signal
import sys
from pathlib import Path

import pytest

from support.waiting import wait_until

ROOT = Path(__file__).parents[2]

SLOW = """
    import pathlib, time

    pathlib.Path("loading").touch()
    while True:
        time.sleep(0.01)
"""

COMMANDS = {
    "module": [sys.executable, "-m", "psched.cli.daemon.master", "-c", "psched.yml"],
    "script": [Path(sys.executable).with_name("psched-master"), "-c", "psched.yml"],
    "clone": [sys.executable, ROOT / "bin/psched-master", "-c", "psched.yml"],
    "run": [sys.executable, "-m", "psched", "-c", "psched.yml", "run", "recorder:Dispatch"],
    "program": [sys.executable, "program.py"],
}


@pytest.fixture
def slow(service):
    """A service whose masters do not get beyond loading a module."""
    service.env["PYTHONPATH"] = str(service.folder / "slow")
    service.write(
        "program.py",
        """
        import psched
        from recorder import Dispatch

        psched.Worker.run(Dispatch, lambda: "psched.yml")
        """,
    )
    return service


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
@pytest.mark.parametrize("way", COMMANDS)
def test_who_stops_a_master_in_its_first_moments_stops_it_as_at_any_time(slow, way, number):
    # The command psched has loaded click before it knows which command is meant.
    slow.write(f"slow/{'setproctitle' if way == 'run' else 'click'}.py", SLOW)
    master = slow.start(*COMMANDS[way], generation=0)
    wait_until((slow.folder / "loading").exists, what="its loading")
    assert master.stop(number) == 0
    assert master.text == ""


def test_what_else_it_is_told_then_is_for_later(slow):
    slow.write("slow/click.py", SLOW.replace("while True", "while not pathlib.Path('go').exists()"))
    master = slow.start(*COMMANDS["module"], generation=0)
    wait_until((slow.folder / "loading").exists, what="its loading")
    for number in signal.SIGUSR2, signal.SIGUSR1, signal.SIGHUP:
        master.send(number)
    (slow.folder / "slow/click.py").unlink()
    (slow.folder / "go").touch()
    # What it has loaded is not click, and it says so: it was not ended by a signal.
    assert master.wait() == 1
    assert "click" in master.text


@pytest.mark.extended
def test_a_master_beside_its_program_can_be_stopped_at_once(service):
    service.write(
        "beside.py",
        """
        import psched

        with psched.start("psched.yml", join=False) as s:
            s.add("job", every=3600, run=print)
        raise SystemExit(s.stop())
        """,
    )
    service.configure(dispatch=None)
    assert [service.run(sys.executable, "beside.py").returncode for _ in range(3)] == [0, 0, 0]
