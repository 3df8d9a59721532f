"""A machine of its own with a real systemd, on which psched is installed as its unit file says.

systemd runs as process 1 of private namespaces: its processes, mounts, control groups and names are
apart from those of the machine that it runs on, whose programs it shares. It sees an ``/etc``,
``/opt`` and ``/var`` of its own, which the tests see as folders. There is no D-Bus: systemctl talks
to systemd directly. There is no journal either, unless a test starts one: output that a journal
would store goes to files.
"""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import psched
from support.owned_process import OwnedProcess
from support.processes import children, kill, title
from support.servers import MissingServerError, find_binary
from support.service import Service
from support.waiting import HANG_TIMEOUT, PATIENCE, wait_for_end, wait_until

FILES = Path(__file__).resolve().parents[2] / "systemd"
"""The files that the repository ships."""

CGROUPS = "psched-test-"
"""The prefix of our control groups' names on the machine that runs the tests."""

PACKAGES = (("nsenter", "util-linux"), ("systemctl", "systemd"), ("logrotate", "logrotate"))
"""The programs that are needed, and the packages that contain them."""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
}
"""The environment of the programs in the machine; nothing of the tests' own is in it."""

LIBRARIES = "LD_LIBRARY_PATH=/opt/python/lib"
"""For an interpreter that is in the machine at another place than it was made for."""

BOOT = r"""
set -eu
mkdir "$GROUP"
# Below the root that its own control groups are to have.
echo 0 >"$GROUP/cgroup.procs"
exec unshare --fork --kill-child=SIGKILL --pid --mount --propagation private --cgroup --uts --ipc \
    sh -c '
        set -eu
        mount -t proc proc /proc
        umount -R /sys/fs/cgroup 2>/dev/null || umount -Rl /sys/fs/cgroup
        mount -t cgroup2 cgroup2 /sys/fs/cgroup
        mount -t tmpfs -o mode=755 tmpfs /run
        # Settings of the kernel belong to the whole machine.
        mount --bind /proc/sys /proc/sys
        mount -o remount,bind,ro /proc/sys
        echo allowed
        mkdir /run/lock
        mount --bind "$SOURCE" "$ROOT/opt/source/psched"
        mount --bind "$PACKAGES" "$ROOT/opt/packages"
        mount --bind "$PREFIX" "$ROOT/opt/python"
        mount --rbind "$ROOT/etc" /etc
        mount --rbind "$ROOT/opt" /opt
        # Last: it may hide where all of this comes from.
        mount --rbind "$ROOT/var" /var
        mount -t tmpfs -o mode=1777 tmpfs /tmp
        mount -t tmpfs -o mode=1777 tmpfs /dev/shm
        # Within these namespaces; in a container systemd does not do it itself.
        mount --make-rshared /
        cd /
        exec env -i PATH="$PATH" container=psched-test SYSTEMD_UNIT_PATH=/etc/systemd/system \
            "$SYSTEMD" --system --unit=default.target --show-status=no --log-target=null
    '
"""
"""Boots systemd; prints "allowed" after the last step that may lack permission."""

PROGRAM = """\
#!/bin/sh
export PYTHONPATH=/opt/source:/opt/packages PYTHONDONTWRITEBYTECODE=1 LD_LIBRARY_PATH={libraries}
exec {python} -m {module} "$@"
"""
"""A program in /opt/psched/bin: this interpreter and these sources, wherever they really are."""

MODULES = {
    "psched-master": "psched.cli.daemon.master",
    "psched": "psched",
    "psched-run-as": "psched.process.run_as_helper",
}
"""The module that each program runs."""

QUICK = """\
[Service]
RestartSec=100ms
StandardOutput=append:/var/log/psched-output
StandardError=inherit
ExecStopPost=/bin/echo ended: ${SERVICE_RESULT}
"""
"""A drop-in for quick restarts and readable output; it changes nothing that is tested."""


JOURNAL = """\
[Journal]
Storage=volatile
ReadKMsg=no
Audit=no
RateLimitIntervalSec=0
"""
"""The settings of a journal: it reads nothing of the machine that runs the tests."""


class ForbiddenError(Exception):
    """This machine does not let us boot a systemd; the text says why."""


class Machine:
    """A machine with systemd, booted; `close` ends all its processes.

    Args:
        home: an empty folder.

    Raises:
        MissingServerError: a package is missing.
        ForbiddenError: the kernel or a container's rules forbid it.
    """

    def __init__(self, home: Path) -> None:
        for program, package in PACKAGES:
            find_binary(program, package)
        if os.geteuid() != 0:
            raise ForbiddenError("only root can boot a systemd")
        self.root = home / "root"
        self.log = home / "systemd.log"
        self._group = _control_groups() / f"{CGROUPS}{os.getpid()}-{home.name}"
        self._furnish()
        self._processes = OwnedProcess(
            ["/bin/sh", "-c", BOOT], output=self.log, cwd=home, env=self._environment()
        )
        try:
            self._wait_until_it_is_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End every process of it; mounts and names go with them."""
        self._processes.close()
        _remove_groups(self._group)

    def run(self, *command: object, status: int | None = 0) -> str:
        """Run a program in the machine as root, and wait for its end; return its output.

        Args:
            command: the command line.
            status: the exit status that is expected; None: any.
        """
        done = subprocess.run(
            ["nsenter", "--all", f"--target={self._init}", *map(str, command)],
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_TIMEOUT,
            check=False,
        )
        assert status in {None, done.returncode}, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout

    def systemctl(self, *arguments: object, status: int | None = 0) -> str:
        """Run ``systemctl``; see `run`."""
        return self.run("systemctl", "--no-pager", *arguments, status=status)

    def group(self, unit: str) -> Path:
        """The control group of a unit, as the tests see it."""
        return self._group / "system.slice" / unit

    def journal(self) -> contextlib.AbstractContextManager[int]:
        """A context manager that runs a journal in the machine; it returns the process's pid.

        Raises:
            MissingServerError: a package is missing.
        """
        program = Path(_systemd()).with_name("systemd-journald")
        return self._journal(find_binary(str(program), "systemd"))

    @contextlib.contextmanager
    def _journal(self, program: str) -> Iterator[int]:
        settings = self.root / "etc/systemd/journald.conf"
        settings.write_text(JOURNAL)
        socket = Path(f"/proc/{self._init}/root/run/systemd/journal/stdout")
        self.run("sh", "-c", f"setsid {program} </dev/null >/dev/null 2>&1 &")

        def found() -> list[int]:
            pids = [pid for pid in children(self._init) if "systemd-journald" in title(pid)]
            return pids if socket.exists() else []

        try:
            yield wait_until(found, what="a journal")[0]
        finally:
            for pid in children(self._init):
                if "systemd-journald" in title(pid):
                    kill(pid)
                    wait_for_end(pid)
            self.run("rm", "-rf", "/run/systemd/journal", "/run/log/journal")
            settings.unlink()

    # --- furniture -------------------------------------------------------------------

    def _furnish(self) -> None:
        for folder in (
            "etc/systemd/system", "etc/sysusers.d", "etc/tmpfiles.d", "etc/logrotate.d",
            "opt/source/psched", "opt/packages", "opt/python", "opt/psched/bin",
            "var/lib", "var/log", "var/tmp", "var/cache",
        ):  # fmt: skip
            (self.root / folder).mkdir(parents=True)
        (self.root / "var/tmp").chmod(0o1777)
        for name in "passwd", "group", "nsswitch.conf", "ld.so.cache", "hosts", "localtime":
            if (ours := Path("/etc", name)).exists():
                shutil.copy(ours, self.root / "etc")
        (self.root / "etc/machine-id").write_text(f"{0:032x}\n")
        units = self.root / "etc/systemd/system"
        for target in "default", "basic", "sysinit", "shutdown", "multi-user":
            units.joinpath(f"{target}.target").write_text(
                f"[Unit]\nDescription={target}\nDefaultDependencies=no\n"
            )
        self._install()

    def _install(self) -> None:
        """Follow the installation steps at the head of the unit file."""
        etc = self.root / "etc"
        shutil.copy(FILES / "psched.service", etc / "systemd/system/psched.service")
        shutil.copy(FILES / "psched.sysusers.conf", etc / "sysusers.d/psched.conf")
        shutil.copy(FILES / "psched.tmpfiles.conf", etc / "tmpfiles.d/psched.conf")
        shutil.copy(FILES / "psched.logrotate", etc / "logrotate.d/psched")
        for command in "systemd-sysusers", ("systemd-tmpfiles", "--create"):
            words = [command] if isinstance(command, str) else [*command]
            subprocess.run([*words, f"--root={self.root}", "psched.conf"], check=True)
        how = {"python": _interpreter(), "libraries": "/opt/python/lib"}
        for name, module in MODULES.items():
            program = self.root / "opt/psched/bin" / name
            program.write_text(PROGRAM.format(module=module, **how))
            program.chmod(0o755)

    def uninstall(self) -> None:
        """Remove all that was installed, and the user."""
        etc = self.root / "etc"
        for name in (
            "systemd/system/psched.service", "sysusers.d", "tmpfiles.d", "logrotate.d", "psched",
            "../opt/psched", "../var/log/psched",
        ):  # fmt: skip
            path = etc / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in "passwd", "group", "shadow", "gshadow":
            if (path := etc / name).exists():
                lines = path.read_text().splitlines(keepends=True)
                path.write_text("".join(line for line in lines if not line.startswith("psched:")))

    def install_wheel(self, wheel: Path, folder: str) -> None:
        """Install a wheel in a new virtual environment, whose other packages are the tests' own."""
        shutil.copy(wheel, self.root / "opt")
        self.run(
            "env", LIBRARIES, _interpreter(), "-m", "venv", "--without-pip", folder
        )  # fmt: skip
        self.run(
            "env", LIBRARIES, "PYTHONPATH=/opt/packages", f"{folder}/bin/python", "-m", "pip",
            "install", "--quiet", "--no-index", "--no-deps", "--ignore-installed",
            "--root-user-action=ignore", f"/opt/{wheel.name}",
        )  # fmt: skip
        (self.root / "opt" / wheel.name).unlink()
        [site] = (self.root / folder.lstrip("/")).glob("lib/python*/site-packages")
        (site / "others.pth").write_text("/opt/packages\n")

    def _environment(self) -> dict[str, str]:
        source = Path(psched.__file__).parent
        packages, prefix = Path(sysconfig.get_path("purelib")), Path(sys.base_prefix)
        for shared in source, packages, prefix:
            if not shared.stat().st_mode & stat.S_IXOTH:
                raise ForbiddenError(f"the unit's user could not read {shared}")
        return {
            **ENVIRONMENT,
            "GROUP": str(self._group),
            "ROOT": str(self.root),
            "SOURCE": str(source),
            "PACKAGES": str(packages),
            "PREFIX": str(prefix),
            "SYSTEMD": _systemd(),
        }

    def _wait_until_it_is_up(self) -> None:
        def up() -> bool:
            if self._processes.status is not None:
                said = self.log.read_text()
                reason = f"a systemd cannot be booted here: {said.strip()}"
                raise AssertionError(reason) if "allowed" in said else ForbiddenError(reason)
            pids = [pid for pid in children(self._processes.pid) if "systemd" in title(pid)]
            if not pids:
                return False
            self._init = pids[0]
            state = self.systemctl("is-system-running", status=None)
            return state.strip() in {"running", "degraded"}

        wait_until(up, what="a systemd that is up")


class Unit:
    """psched.service on such a machine, fresh for each test; `close` ends it.

    Args:
        machine: where the unit runs.
        settings: for psched.yml, see `support.service.Service`.

    Attributes:
        service: its state folder, as a service under test.
        logs: its logs folder.
    """

    def __init__(self, machine: Machine, **settings: object) -> None:
        self.machine = machine
        self._dropins = machine.root / "etc/systemd/system/psched.service.d"
        state = machine.root / "var/lib/psched"
        self.logs = machine.root / "var/log/psched"
        self.output = machine.root / "var/log/psched-output"
        state.mkdir()
        self.service = Service(state, f"sqlite:///{state}/psched.db")
        self.configure(log="/var/log/psched/psched.log", **settings)
        self.drop_in("quick", QUICK)

    def close(self) -> None:
        """End the unit, print its logs, and remove all its files."""
        # KILL goes to all its processes, so that none cleans up.
        self.machine.systemctl("kill", "-s", "KILL", "psched", status=None)
        self.machine.systemctl("stop", "psched", status=None)
        self.machine.systemctl("reset-failed", "psched", status=None)
        for log in self.log, self.output:
            if log.exists():
                sys.stdout.write(f"--- {log.name}\n{log.read_text()}\n")
        self.output.unlink(missing_ok=True)
        for log in self.logs.iterdir():
            log.unlink()
        shutil.rmtree(self.service.folder)
        shutil.rmtree(self._dropins)

    @property
    def log(self) -> Path:
        """The log file."""
        return self.logs / "psched.log"

    def configure(self, **settings: object) -> None:
        """Change settings, both in the service's psched.yml and in /etc/psched."""
        self.service.configure(**settings)
        given: dict[str, Any] = yaml.safe_load(self.service.config.read_text())
        # In the machine, the database file has another path, the default one.
        del given["url"]
        config = self.machine.root / "etc/psched/psched.yml"
        config.write_text(yaml.safe_dump(given))

    def drop_in(self, name: str, text: str) -> None:
        """Change the unit, as with ``systemctl edit``."""
        self._dropins.mkdir(exist_ok=True)
        (self._dropins / f"{name}.conf").write_text(text)
        self.machine.systemctl("daemon-reload")

    # --- what is done to it ----------------------------------------------------------

    def start(self, *options: str) -> None:
        """Start the unit; return when it is ready, unless an option says otherwise."""
        self.machine.systemctl("start", *options, "psched")

    def kill(self, number: signal.Signals, whom: str = "main") -> None:
        """Send a signal to "main", the master, or to "all"."""
        self.machine.systemctl("kill", f"--kill-whom={whom}", f"--signal={number.name}", "psched")

    # --- what is seen of it ----------------------------------------------------------

    def show(self, name: str) -> str:
        """One of the unit's properties."""
        return self._show(name)[name]

    def _show(self, *names: str) -> dict[str, str]:
        shown = self.machine.systemctl("show", f"--property={','.join(names)}", "psched")
        return dict(line.split("=", 1) for line in shown.splitlines())

    def wait_for(self, *, timeout: float = PATIENCE, **properties: str) -> None:
        """Wait until the unit's properties have these values."""

        def as_wanted() -> bool:
            return self._show(*properties) == properties

        try:
            wait_until(as_wanted, timeout=timeout, what=f"a unit with {properties}")
        except AssertionError as error:
            error.add_note(self.machine.systemctl("status", "psched", status=None))
            raise

    @property
    def processes(self) -> dict[int, Path]:
        """The pids of all that belongs to the unit, and the control group that each is in."""
        found = {}
        for procs in self.group.rglob("cgroup.procs"):
            # The process may end while it is read.
            with contextlib.suppress(OSError):
                found |= {int(pid): procs.parent for pid in procs.read_text().split()}
        return found

    def group_of(self, pid: int) -> Path:
        """The control group of a process, given the process's pid in the machine."""
        [found] = [group for ours, group in self.processes.items() if _inner_pid(ours) == pid]
        return found

    @property
    def group(self) -> Path:
        """The unit's control group."""
        return self.machine.group("psched.service")


def _inner_pid(pid: int) -> int | None:
    """The pid of a process in its own namespace; None: the process is gone."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        return int(re.findall(r"^NSpid:.*\t(\d+)$", status, re.MULTILINE)[0])
    return None


def _systemd() -> str:
    paths = [Path(folder, "systemd") for folder in ("/usr/lib/systemd", "/lib/systemd")]
    if found := [path for path in paths if path.exists()]:
        return str(found[0])
    raise MissingServerError("systemd is missing: install systemd")


def _interpreter() -> str:
    """The interpreter's path below /opt/python, where its whole prefix is mounted."""
    executable = Path(os.path.realpath(sys.executable))
    return str("/opt/python" / executable.relative_to(os.path.realpath(sys.base_prefix)))


def _control_groups() -> Path:
    """Where control groups of version 2 are mounted; removes those of sessions that were killed."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
    if not found:
        raise ForbiddenError("no cgroup2 is mounted")
    for left in found[0].glob(f"{CGROUPS}*"):
        _rmdirs(left)
    return found[0]


def _remove_groups(group: Path) -> None:
    def removed() -> bool:
        _rmdirs(group)
        return not group.exists()

    wait_until(removed, what=f"the end of {group}")


def _rmdirs(group: Path) -> None:
    """Remove the control groups that are empty."""
    below = sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True)
    for folder in [*below, group]:
        with contextlib.suppress(OSError):
            folder.rmdir()
