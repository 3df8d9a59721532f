"""What tasks see of the store's password: nothing in an environment, or in others' memory."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import children, runners, title
from support.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs"

JOBS = """
    import json
    import os
    import subprocess
    from pathlib import Path

    import psched
    from recorder import Dispatch as Before

    AT_IMPORT = os.environ.get("STORE_SECRET")


    def looks(task):
        child = subprocess.run(["env"], capture_output=True, text=True, check=True)
        block = subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True)
        with psched.open("psched.yml") as schedules:
            found = schedules[task.key].exists()
        seen = {
            "at import": AT_IMPORT,
            "here": os.environ.get("STORE_SECRET"),
            "in a child": "STORE_SECRET" in child.stdout,
            "in our block": b"STORE_SECRET" in block.stdout,
            "beside it": os.environ.get("NO_SECRET"),
            "schedules": [found, task.schedules[task.key].exists()],
        }
        Path(f"{task.key}.json").write_text(json.dumps(seen))


    class Dispatch(Before):
        routes = {"looks": looks}
"""

NOTHING_SEEN = {
    "at import": None,
    "here": None,
    "in a child": False,
    "in our block": False,
    "beside it": "seen",
    "schedules": [True, True],
}


@pytest.fixture
def service(make_service):
    """A service on a store with a password, which stands in an environment variable."""
    made = make_service("")
    shutil.copy(DOCS / "examples/filestore.py", made.folder)
    made.write("jobs.py", JOBS)
    store = {"path": str(made.folder / "schedules.json"), "password": "${STORE_SECRET}"}
    made.configure(url=None, type="filestore:FileStore", store=store, dispatch="jobs:Dispatch")
    made.env |= {"STORE_SECRET": "s3cr3t", "NO_SECRET": "seen"}
    assert made.psched("init").returncode == 0
    return made


def told(service, name):
    """What a task has written into a file."""
    path = service.folder / name
    wait_until(lambda: path.is_file() and path.read_text(), what=name)
    return path.read_text()


def push(service, key, type_, data):
    done = service.psched("push", key, type_, json.dumps(data))
    assert done.returncode == 0, done.stderr


def test_no_task_has_the_variable_that_the_password_stands_in_and_the_store_is_there(service):
    master = service.start()
    for generation in 1, 2:
        key = f"python{generation}"
        push(service, key, "looks", {})
        wait_until((service.folder / f"{key}.json").is_file, what="its end")
        assert json.loads(told(service, f"{key}.json")) == NOTHING_SEEN

        command = f"env > part{generation}; mv part{generation} env{generation}"
        push(service, f"shell{generation}", "exec", {"command": command, "shell": True})
        assert "STORE_SECRET" not in told(service, f"env{generation}")
        assert "NO_SECRET=seen" in told(service, f"env{generation}")
        # The master still has it: it reads the settings for each generation.
        master.send(signal.SIGHUP)
        master.wait_for_generation(generation + 1)

    data = {"command": "env > part; mv part given", "shell": True, "env": {"STORE_SECRET": "own"}}
    push(service, "given", "exec", data)
    assert "STORE_SECRET=own" in told(service, "given")
    assert master.stop() == 0


def test_a_program_that_is_a_service_withholds_it_too(service):
    service.write(
        "program.py",
        """
        import psched
        from jobs import Dispatch

        psched.Worker.run(Dispatch, lambda: "psched.yml")
        """,
    )
    master = service.start(*service.master_command, "program.py")
    command = "env > part; mv part seen"
    push(service, "shell", "exec", {"command": command, "shell": True})
    assert "STORE_SECRET" not in told(service, "seen")
    assert master.stop() == 0


@pytest.fixture
def without_ptrace():
    """What stands before a command that is not to have root's right to read any process."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0:
        return []
    if setpriv is None:
        pytest.skip("util-linux's setpriv is missing")
    # Nor as a member of root's group, from which hidepid hides nothing.
    group = ["--regid", "65534", "--clear-groups"]
    return [setpriv, *group, "--bounding-set", "-sys_ptrace,-sys_admin,-perfmon", "--"]


PEEPING = """
for pid in {pids} $PPID; do
    for file in environ mem maps fd/0; do
        if head -c 1 /proc/$pid/$file > /dev/null 2>&1; then
            echo "$pid $file" >> part
        fi
    done
done
head -c 1 /proc/$$/environ > /dev/null && echo own >> part
mv part {to}
"""


@pytest.mark.monitor
def test_no_task_reads_the_memory_or_the_environment_of_psched(service, without_ptrace):
    command = [*service.master_command, "-c", service.config.name]
    master = service.start(*without_ptrace, *command)
    [worker] = master.workers()
    ours = [master.pid, master.wait_for_monitor(), worker, *children(worker)]
    pids = " ".join(map(str, ours))
    for kind in "runner", "program runner":  # the first program is run by a runner
        data = {"command": PEEPING.format(pids=pids, to=f"'{kind}'"), "shell": True}
        push(service, kind, "exec", data)
        # Which memory is where is told to nobody either.
        assert told(service, kind).split("\n") == ["own", ""]
        wait_until(lambda: len(runners(worker)) == 2, what="a program runner")
    # It can still see and kill what a task starts.
    push(service, "stays", "exec", {"command": "sleep 1000 & exit 0", "shell": True})
    service.psched("push", "stays", "{}", "--wait")
    # The master, monitor and worker, its collector, its fork server, an idle runner, and one that
    # runs programs.
    wait_until(lambda: len(master.descendants) <= 7, what="the end of what a task has left")
    assert master.stop() == 0


@pytest.mark.extended
def test_where_proc_is_hidden_it_is_said_and_psched_works(service, without_ptrace):
    unshare, mount = map(shutil.which, ["unshare", "mount"])
    if not (unshare and mount and os.geteuid() == 0):
        pytest.skip("only root can mount /proc anew, by util-linux's unshare")
    command = [*without_ptrace, *service.master_command, "-c", service.config.name]
    script = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    hidden = [unshare, "--mount", "sh", "-c", script, "sh", *command]
    master = service.start(*hidden)
    assert "Is /proc mounted with hidepid?" in master.text
    push(service, "stays", "exec", {"command": "sleep 1000 & exit 0", "shell": True})
    assert service.psched("push", "stays", "{}", "--wait").stdout == "stays: finished\n"
    # The master, monitor and worker, its collector, its fork server, an idle runner, and one that
    # runs programs.
    wait_until(lambda: len(master.descendants) <= 7, what="the end of what a task has left")
    assert master.stop() == 0


@pytest.mark.parametrize("option", ["--url={}", "--database={}"])
def test_a_password_on_the_command_line_leaves_the_list_of_processes(tmp_path, option):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts, and never answers
        url = f"mysql://u:Xsecret@127.0.0.1:{silent.getsockname()[1]}/x"
        command = [sys.executable, "-m", "psched", "list", option.format(url)]
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        with subprocess.Popen(command, cwd=tmp_path, env=env) as process:
            try:
                masked = f"psched list {option.format(url.replace('Xsecret', '***'))}"
                wait_until(lambda: title(process.pid) == masked, what="another title")
                assert b"Xsecret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            finally:
                process.kill()
