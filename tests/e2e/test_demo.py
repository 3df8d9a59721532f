"""The command demo, which bin/demo runs: a temporary service that leaves nothing behind."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import support
from support.owned_process import OwnedProcess
from support.processes import children, descendants, kill
from support.waiting import HANG_TIMEOUT, PATIENCE, wait_until

pytestmark = pytest.mark.extended

ROOT = Path(__file__).parents[2]
SCRIPT = Path(support.__file__).with_name("on_terminal.py")


@pytest.fixture
def start(tmp_path, request):
    """Starts the demonstration, which keeps its folder below that of the test."""
    log, temporary = tmp_path / "log", tmp_path / "temporary"
    temporary.mkdir()
    log.touch()
    env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}

    def start(*before):
        command = [*before, sys.executable, "-m", "psched", "demo"]
        process = OwnedProcess(command, output=log, cwd=tmp_path, env=env, forked=False)
        request.addfinalizer(process.close)
        wait_until(lambda: "finished in" in log.read_text(), what="a run")
        return process, log

    return start


def asked(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_is_left(start, tmp_path, number):
    process, log = start()
    [folder] = (tmp_path / "temporary").glob("psched-demo-*")
    assert (folder / "psched.db").exists()
    started = descendants(process.pid)
    assert len(started) > 3  # a master, its workers, and the pages
    command = [sys.executable, "-m", "psched", "-c", str(folder / "psched.yml")]
    words = ["push", "hello", "exec", '{"command": ["echo", "a program of the newcomer"]}']
    subprocess.run([*command, *words], check=True, timeout=HANG_TIMEOUT, cwd=ROOT)
    wait_until(lambda: "hello: a program of the newcomer" in log.read_text(), what="its output")
    kill(process.pid, number)
    wait_until(lambda: process.status is not None, what="its end")
    assert process.status == 0
    assert [*(tmp_path / "temporary").iterdir()] == []
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    told = log.read_text()
    assert "login?code=" not in told  # the secret is for a terminal
    assert "Traceback (most recent call last)" not in told.partition("generation 1 serves")[0]


def test_if_it_is_killed_its_service_ends(start):
    process, _ = start()
    started = descendants(process.pid)
    kill(process.pid, signal.SIGKILL)
    gone = lambda: not any(Path(f"/proc/{pid}").exists() for pid in started)  # noqa: E731
    wait_until(gone, what="the end of its processes")


def test_if_its_master_dies_it_says_so_and_ends_with_an_error(start, tmp_path):
    process, log = start()
    master, _pages = children(process.pid)  # in the order of their start
    kill(master, signal.SIGKILL)
    wait_until(lambda: process.status is not None, what="its end")
    assert process.status == 1
    assert "Error: the master has ended, so the demonstration ends, too" in log.read_text()
    assert [*(tmp_path / "temporary").iterdir()] == []


def test_the_end_of_a_process_that_is_not_its_own_does_not_end_it(start):
    # In a container, it can be the parent of all that have lost theirs.
    process, log = start("/bin/sh", "-c", 'true & exec "$@"', "sh")
    master, _pages = children(process.pid)
    kill(master, signal.SIGKILL)
    wait_until(lambda: process.status is not None, what="its end")
    assert "Error: the master has ended" in log.read_text()


def test_a_port_that_is_taken_is_an_error_and_nothing_is_left(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "psched", "demo", "--port", str(taken.getsockname()[1])]
        env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=HANG_TIMEOUT, check=False
        )
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    assert [*tmp_path.iterdir()] == []


def test_on_a_terminal_its_link_leads_to_a_timeline_with_a_past(start, tmp_path):
    process, log = start(sys.executable, "-I", "-S", str(SCRIPT), str(tmp_path / "keys"))
    [(port, code)] = re.findall(r":(\d+)/login\?code=([0-9a-f]+)", log.read_text())
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    origin = {"Origin": f"http://127.0.0.1:{port}"}
    answer, _ = asked(int(port), "POST", "/login", f"code={code}", **form, **origin)
    assert (answer.status, answer.headers["Location"]) == (303, "./")
    cookie = answer.headers["Set-Cookie"].partition(";")[0]
    answer, page = asked(int(port), "GET", "/?span=2d", Cookie=cookie)
    assert answer.status == 200
    for kind, reason in (
        ("failed", "RefusedError: 503 Service Unavailable"),
        ("skipped", "an earlier run took until then"),
    ):
        assert f'class="{kind}"' in page
        assert reason in page
    for key in "billing.invoices", "demo.hangs":
        assert key in page
    (tmp_path / "keys").write_bytes(b"\x03")
    wait_until(lambda: process.status is not None, what="its end")
    assert [*(tmp_path / "temporary").iterdir()] == []
