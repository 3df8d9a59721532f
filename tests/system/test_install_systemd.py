"""psched install-systemd, from a wheel, under a real systemd."""

import json
import re
import shutil
import zipfile

import pytest

from support.systemd import FILES, LIBRARIES
from support.waiting import wait_until
from support.wheel import build_wheel

pytestmark = pytest.mark.extended

VENV = "/opt/of-wheel"
PSCHED = f"{VENV}/bin/psched"
CONFIG = "/etc/psched/psched.yml"
INSTALLED = {
    "/etc/sysusers.d/psched.conf": 0o644,
    "/etc/tmpfiles.d/psched.conf": 0o644,
    CONFIG: 0o640,
    f"{CONFIG}.example": 0o640,
    "/etc/systemd/system/psched.service": 0o644,
    "/etc/logrotate.d/psched": 0o644,
}
NOBODY = "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def host(bare_machine, wheel):
    """A machine with the wheel installed, and a drop-in that only its interpreter needs."""
    bare_machine.install_wheel(wheel, VENV)
    drop_ins = bare_machine.root / "etc/systemd/system/psched.service.d"
    drop_ins.mkdir()
    (drop_ins / "test.conf").write_text(f"[Service]\nEnvironment={LIBRARIES}\n")
    return bare_machine


def install(host, *options, status=0, user=()):
    """Run the command, as root or as another user."""
    return host.run(
        *user, "env", LIBRARIES, PSCHED, "install-systemd", *options, status=status
    )  # fmt: skip


def path_of(host, name):
    return host.root / name.lstrip("/")


def test_the_wheel_contains_the_files_of_the_repository(wheel):
    with zipfile.ZipFile(wheel) as archive:
        [data] = {name.split("/")[0] for name in archive.namelist() if ".data/" in name}
        shipped = [*FILES.glob("psched.*"), *(FILES.parent / "etc").glob("psched.yml*")]
        assert len(shipped) == len(INSTALLED)
        for path in shipped:
            name = f"{data}/data/share/psched/{path.parent.name}/{path.name}"
            assert archive.read(name) == path.read_bytes()
        for folder in "psched/web/templates", "psched/web/static":
            for path in (FILES.parent / folder).iterdir():
                assert archive.read(f"{folder}/{path.name}") == path.read_bytes()


def test_a_dry_run_shows_every_step_to_any_user_and_changes_nothing(host):
    shown = install(host, "--dry-run", user=NOBODY)

    for name, mode in INSTALLED.items():
        assert re.search(
            rf"^write +{re.escape(name)}  \(mode {mode:04o}, from {VENV}/share/psched/\S+\)$",
            shown,
            re.MULTILINE,
        ), shown
        assert not path_of(host, name).exists()
    assert f"ExecStart={VENV}/bin/psched-master -c {CONFIG}\n" in shown
    for command in (
        "systemd-sysusers psched.conf",
        "systemd-tmpfiles --create psched.conf",
        "systemctl daemon-reload",
    ):
        assert re.search(rf"^run +{command}$", shown, re.MULTILINE)
    assert "psched:" not in path_of(host, "/etc/passwd").read_text()


@pytest.mark.landing
def test_another_user_than_root_is_refused(host):
    refused = install(host, status=1, user=NOBODY)
    assert "only root can install a unit; run: sudo " + PSCHED in refused
    assert not path_of(host, "/etc/sysusers.d").exists()
    refused = install(host, "--remove", status=1, user=NOBODY)
    assert "only root can remove a unit; run: sudo " + PSCHED in refused
    assert " install-systemd --remove (" in refused


def test_an_environment_that_the_services_user_cannot_read_is_refused_with_a_fix_that_works(host):
    modules = path_of(host, VENV) / "lib"
    modules.chmod(0o700)
    refused = install(host, "--dry-run", status=1)
    assert f"{VENV}/lib: the service's user psched cannot use it" in refused
    [fix] = re.findall(r"allow it: (.*)", refused)
    host.run("sh", "-c", fix)
    install(host, "--dry-run")


def test_an_image_gets_files_a_user_and_a_service_that_is_enabled(host):
    image = path_of(host, "/opt/image")
    (image / "etc").mkdir(parents=True)

    shown = install(host, "--root", "/opt/image")

    for name, mode in INSTALLED.items():
        assert (image / name.lstrip("/")).stat().st_mode & 0o7777 == mode
    group = re.findall(r"^psched:\w*:(\d+):", (image / "etc/group").read_text(), re.MULTILINE)
    assert [str((image / "etc/psched/psched.yml").stat().st_gid)] == group
    [enable] = re.findall(r"(systemctl --root=/opt/image enable psched) ", shown)
    host.run("sh", "-c", enable)
    wanted = image / "etc/systemd/system/multi-user.target.wants/psched.service"
    assert wanted.is_symlink()
    assert "daemon-reload" not in shown
    assert not path_of(host, "/etc/sysusers.d").exists()


def test_a_program_of_systemd_that_fails_is_named_with_what_it_says(host):
    etc = path_of(host, "/opt/odd-image") / "etc"
    etc.mkdir(parents=True)
    (etc / "group").mkdir()

    refused = install(host, "--root", "/opt/odd-image", status=1)

    program = "systemd-sysusers --root=/opt/odd-image psched.conf"
    assert re.search(
        rf"^Error: `{program}` failed with status [1-9]\d*: .*group", refused, re.MULTILINE
    )
    (etc / "group").rmdir()
    install(host, "--root", "/opt/odd-image")


def test_the_service_runs_after_the_commands_that_the_output_names(host):
    shown = install(host)

    for name, mode in INSTALLED.items():
        assert path_of(host, name).stat().st_mode & 0o7777 == mode
    users = path_of(host, "/etc/passwd").read_text()
    [(uid, gid)] = re.findall(r"^psched:x:(\d+):(\d+):", users, re.MULTILINE)
    config = path_of(host, CONFIG)
    for path in config, config.parent:
        assert (path.stat().st_uid, path.stat().st_gid) == (0, int(gid))
    assert config.parent.stat().st_mode & 0o7777 == 0o750
    assert path_of(host, "/var/log/psched").stat().st_uid == int(uid)

    edit, *commands = shown.partition("Next:\n")[2].splitlines()
    assert edit.split()[:2] == ["edit", CONFIG]
    assert len(commands) == 2
    for command in commands:
        host.run("env", LIBRARIES, "sh", "-c", command)
    assert host.systemctl("is-active", "psched") == "active\n"
    assert host.systemctl("is-enabled", "psched") == "enabled\n"

    task = '{"command": ["touch", "greeting"]}'
    host.run("env", LIBRARIES, PSCHED, "push", "hello", "exec", task)
    wait_until(path_of(host, "/var/lib/psched/greeting").exists, what="the run of the task")

    # As an administrator, and as an upgrade.
    with config.open("a") as file:
        file.write("# a change\n")
    again = install(host)
    assert re.findall(r"^(\w+) +/", again, re.MULTILINE) == [
        *["same", "same", "keep", "same", "same", "same"]
    ]
    assert "systemctl restart psched " in again
    assert config.read_text().endswith("# a change\n")
    shown = install(host, "--dry-run", user=NOBODY)
    assert f"\nunknown  {CONFIG}  (only root can read it; it is kept if it was changed)\n" in shown
    host.systemctl("restart", "psched")
    assert host.systemctl("is-active", "psched") == "active\n"

    host.systemctl("stop", "psched")
    assert host.systemctl("show", "--property=Result", "psched") == "Result=success\n"


FETCH = """
import http.client, socket, sys
connection = http.client.HTTPConnection("localhost", timeout=60)
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/psched-web/web.sock")
connection.request("GET", sys.argv[1], headers={"X-Remote-User": "ann"})
print(connection.getresponse().read().decode())
"""
"""Reads a page of psched web in the machine."""


def test_the_unit_of_the_web_pages_shows_what_the_service_runs(host):
    install(host)
    page = (FILES.parent / "docs/web.md").read_text()
    [unit] = re.findall(r"```ini\n(# \S*/psched-web\.service\n.*?)```", page, re.DOTALL)
    units = path_of(host, "/etc/systemd/system")
    (units / "psched-web.service").write_text(unit.replace("/opt/psched/", f"{VENV}/"))
    path_of(host, "/etc/psched/web-users").write_text("ann read -\n")
    (units / "psched-web.service.d").mkdir()
    shutil.copy(units / "psched.service.d/test.conf", units / "psched-web.service.d")
    host.systemctl("daemon-reload")
    host.systemctl("start", "psched", "psched-web")

    command = "echo it prints; until [ -e end ]; do sleep 0.1; done"
    task = json.dumps({"shell": True, "command": command})
    host.run("env", LIBRARIES, PSCHED, "push", "prints", "exec", task)

    def fetched(path):
        return host.run(f"{VENV}/bin/python", "-c", FETCH, path, status=None)

    wait_until(lambda: "<pre>it prints\n" in fetched("/occurrence?key=prints"), what="the output")
    wait_until(lambda: re.search(r"\b1 of \d+ slots busy", fetched("/now")), what="its slot")
    path_of(host, "/var/lib/psched/end").touch()
    wait_until(lambda: "finished" in fetched("/occurrence?key=prints"), what="the end of the task")
    host.systemctl("stop", "psched")
    assert "no worker is known to be alive" in fetched("/now")
    host.systemctl("stop", "psched-web")
    assert host.systemctl("show", "--property=Result", "psched-web") == "Result=success\n"
