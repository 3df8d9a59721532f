"""The command top on a real terminal: it draws, its keys act, it leaves the terminal as it was."""

import json
import shlex
import signal
import socket
from pathlib import Path

import pytest

from support.processes import kill, title
from support.terminals import Terminal, width_of
from support.waiting import wait_until

pytestmark = pytest.mark.extended

LATER = 4_000_000_000


@pytest.fixture
def service(service):
    service.env["TERM"] = "xterm-256color"
    service.configure(concurrency=2)
    return service


@pytest.fixture
def busy(service):
    """A service with a task that runs until the gate is opened, and a schedule that waits."""
    service.add("long", data={"until": "gate"})
    service.add("hourly", cron="0 * * * *", next_time=LATER)
    return service


class Top(Terminal):
    """The command top, started by a shell that notes the terminal's settings before and after."""

    def __init__(self, service, *options):
        command = [*service.psched_command, "top", "--interval", "0.2", *options]
        line = (
            f"trap : INT; stty rows 24 columns 80; stty -a >before; {shlex.join(command)};"
            " echo ended with $?; stty -a >after"
        )
        self._folder = service.folder
        super().__init__(service, "/bin/sh", "-c", line, name="top")

    @property
    def pid(self):
        """The process of psched top."""
        return _top_of(self.process)

    def ends(self, status):
        """Wait for the end; the terminal is as it was before."""
        assert self.process.wait() == 0
        seen = self.emulator
        assert not seen.alternate
        assert seen.cursor
        assert seen.lines == [*seen.lines[:-1], f"ended with {status}"]
        settings = [(self._folder / name).read_text() for name in ("before", "after")]
        # The first line contains the size of the window.
        assert len({each.partition("\n")[2] for each in settings}) == 1


def test_the_screen_shows_what_runs_and_what_is_next_and_q_leaves_it_as_it_was(busy):
    busy.start()
    top = Top(busy)
    seen = top.shows("^  long .* recorder ")
    assert seen.alternate
    assert not seen.cursor
    assert len(seen.lines) == 24
    assert all(width_of(line) <= 80 for line in seen.lines)
    text = "\n".join(seen.lines)
    assert "1 running" in text
    assert "1 of 2 slots free" in text
    assert socket.gethostname() in text
    assert "clock +" in text or "clock -" in text
    top.shows("^  hourly .*2096-10-02 .* 0 \\* \\* \\* \\*")
    top.type("q")
    top.ends(0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(service, number):
    service.init()
    top = Top(service)
    top.shows("q quit")
    kill(top.pid, number)
    top.ends(128 + number)


def test_ctrl_c_ends_it(service):
    service.init()
    top = Top(service)
    top.shows("0 running")
    top.type(b"\x03")
    top.ends(0)


def test_it_ends_when_its_window_is_closed(service):
    service.init()
    top = Top(service)
    top.shows("q quit")
    pid = top.pid
    top.close()
    wait_until(lambda: not _lives(pid), what="the end of psched top")


def test_the_end_of_its_session_is_no_error(service):
    """The kernel sends CONT with HUP, and then nobody can take the terminal again."""
    service.init()
    top = Terminal(service, *service.psched_command, "top")
    top.shows("q quit")
    top.close()
    assert top.process.wait() in {0, 256 - signal.SIGHUP}


def test_the_screen_follows_the_size_of_the_window(service):
    for number in range(60):
        service.add(f"s{number:02}", cron="0 * * * *", next_time=LATER + number)
    top = Top(service)
    top.shows("^  s10 ")
    top.resize(40, 60)
    seen = top.wait_for(
        lambda seen: len(seen.lines) == 40 and any("s30" in line for line in seen.lines),
        what="40 lines",
    )
    assert max(width_of(line) for line in seen.lines) <= 60
    top.resize(8, 60)
    top.wait_for(lambda seen: len(seen.lines) == 8, what="8 lines")
    top.type("q")
    top.ends(0)


def test_keys_pause_resume_and_trigger_the_selected_schedule(busy):
    busy.start()
    top = Top(busy)
    top.shows("^  hourly ")
    top.shows("^  long ")
    top.type("p")
    top.shows("select a row first")
    top.type("jj")
    top.shows("^> hourly ")
    top.type("p")
    top.shows(r"pause hourly\? \[y/N\]")
    top.type("n")
    top.wait_for(lambda seen: not any("[y/N]" in line for line in seen.lines), what="no question")
    assert busy.row("hourly").status == "waiting"

    top.type("py")
    busy.wait_for_row("hourly", lambda seen: seen.status == "paused")
    top.shows("^  PAUSED 1")
    top.shows("1 paused")
    top.type("G")
    top.shows("^> hourly .*by ")
    top.type("p")
    top.shows(r"resume hourly\? \[y/N\]")
    top.type("y")
    busy.wait_for_row("hourly", lambda seen: seen.status == "waiting")
    top.shows("^> hourly .*0 \\* ")

    top.type("t")
    top.shows(r"trigger hourly\? \[y/N\]")
    top.type("y")
    top.shows("triggered hourly")
    with busy.schedules() as schedules:
        audited = [(each.action, each.note) for each in schedules.audit("hourly")]
    assert audited[:3] == [
        ("trigger", "psched top"),
        ("resume", "psched top"),
        ("pause", "psched top"),
    ]
    top.type("q")
    top.ends(0)


def test_an_action_that_is_refused_is_a_message(busy):
    top = Top(busy)
    top.shows("^  long ")
    top.type("j")
    top.shows("^> long ")
    top.type("p")
    top.shows("pause long")
    with busy.schedules() as schedules:
        schedules["long"].delete()
    top.type("y")
    top.shows("cannot pause long: .*long")
    top.type("q")
    top.ends(0)


def test_l_shows_what_the_selected_task_prints_and_comes_back(service):
    service.write(
        "prints.py",
        """
        import pathlib, time
        from psched.application import Base, Dispatch

        class Prints(Base):
            def run(self):
                print("these are the words", flush=True)
                while not pathlib.Path("gate").exists():
                    time.sleep(0.05)

        class Printing(Dispatch):
            routes = {"prints": Prints}
        """,
    )
    service.configure(dispatch="prints:Printing", output="both")
    service.add("talks", "prints")
    service.start()
    top = Top(service)
    top.shows("^  talks ")
    top.type("j")
    top.shows("^> talks ")
    top.type("l")
    seen = top.shows("these are the words")
    assert not seen.alternate
    assert seen.cursor
    top.type(b"\x03")
    top.shows("Enter returns")
    top.type("\n")
    top.wait_for(lambda seen: seen.alternate, what="the screen of psched top")
    top.shows("^> talks ")
    top.type("l")
    top.wait_for(
        lambda seen: sum("running <==" in line for line in seen.lines) == 2,
        what="the output once more",
    )
    service.open_gate("gate")
    top.shows("attempt 1: finished")
    top.type("\n")
    top.shows("0 running")
    top.type("q")
    top.ends(0)


def test_it_goes_on_while_the_store_does_not_answer(service):
    service.init()
    service.add("first", cron="0 * * * *", next_time=LATER)
    path = service.folder / "away.db"
    database = next(each for each in service.folder.parent.rglob("*.db") if each.exists())
    top = Top(service)
    top.shows("^  first ")
    database.rename(path)
    top.shows("psched init|does not answer|does not exist|no longer|is gone")
    path.rename(database)
    service.add("second", cron="0 * * * *", next_time=LATER)
    top.shows("^  second ")
    top.type("q")
    top.ends(0)


@pytest.mark.parametrize("how", ["key", "signal"])
def test_ctrl_z_gives_the_terminal_back_until_it_is_continued(service, how):
    service.init()
    command = shlex.join([*service.psched_command, "top"])
    line = f"set -m; stty rows 24 columns 80; {command}; echo now $?; read line; fg; echo then $?"
    top = Terminal(service, "/bin/bash", "-c", line)
    top.shows("q quit")
    if how == "key":
        top.type(b"\x1a")
    else:
        kill(_top_of(top.process), signal.SIGTSTP)
    seen = top.shows("now 148")  # 128 + TSTP
    assert not seen.alternate
    assert seen.cursor
    top.type("\n")
    top.wait_for(lambda seen: seen.alternate, what="the screen of psched top")
    top.type("q")
    assert top.process.wait() == 0
    seen = top.emulator
    assert not seen.alternate
    assert seen.lines[-1] == "then 0"


def test_without_colours(busy):
    busy.env["NO_COLOR"] = "1"
    busy.start()
    top = Top(busy)
    top.shows("^  long ")
    top.type("j")
    seen = top.shows("^> long ")
    assert seen.styles == set()
    top.type("q")
    top.ends(0)


@pytest.mark.parametrize("how", ["dumb", "once", "pipe"])
def test_otherwise_one_screen_is_printed_as_plain_text(busy, how):
    busy.start()
    busy.wait_for_row("long", lambda seen: seen.status == "running")
    if how == "pipe":
        shown = busy.psched("top")
        assert shown.returncode == 0
        text = shown.stdout
    else:
        if how == "dumb":
            busy.env["TERM"] = "dumb"
        top = Top(busy, *(["--once"] if how == "once" else []))
        top.process.wait()
        text = top.process.log.read_text()
    assert "\x1b" not in text
    assert "long" in text
    assert "hourly" in text


def test_json_is_one_object(busy):
    busy.start()
    busy.wait_for_row("long", lambda seen: seen.status == "running")
    shown = json.loads(busy.psched("top", "--json").stdout)
    (running,) = shown["running"]
    assert (running["key"], running["type"], running["attempt"]) == ("long", "recorder", 1)
    assert running["host"] == socket.gethostname()
    (master,) = shown["masters"]
    assert (master["slots"], master["free"], master["phase"]) == (2, 1, "serving")
    assert abs(master["clock"]) < 60
    assert (shown["slots"], shown["free"]) == (2, 1)
    assert [each["key"] for each in shown["coming"]] == ["hourly"]
    with busy.schedules() as schedules:
        assert abs(shown["now"] - schedules.now()) < 60


def test_no_payload_is_shown(service):
    service.configure(redact=["password", "token"])
    service.add("late", data={"password": "hunter2"})
    service.add("next", cron="0 * * * *", next_time=LATER, data={"token": "hunter2"})
    for options in ["--once"], ["--json"]:
        shown = service.psched("top", *options).stdout
        assert "next" in shown
        assert "hunter2" not in shown


def test_a_store_that_cannot_be_used_is_an_error(service):
    service.configure(url="sqlite:////nowhere/psched.db")
    shown = service.psched("top", "--once")
    assert shown.returncode == 1
    assert "/nowhere" in shown.stdout


def _top_of(terminal):
    """The process of psched top on a terminal."""
    return [pid for pid in terminal.descendants if " top" in title(pid)][-1]


def _lives(pid):
    return _state(pid) not in "ZX"


def _state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
