"""What psched install-systemd writes, replaces and keeps, in the root folder of an image."""

import os
import re
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from psched.base.errors import ConfigError
from psched.cli.commands import psched
from psched.cli.install import files as installed
from psched.cli.install.command import Installation
from psched.cli.install.files import (
    HIDDEN,
    Environment,
    State,
    SystemFile,
    service_files,
    user_files,
)
from psched.process.run_as_list import parse as parse_list

ROOT = Path(__file__).parents[2]
MASTER = Path("/opt/somewhere/bin/psched-master")
GROUP = 987

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to a group")


@pytest.fixture
def environment():
    return Environment(MASTER.parents[1], MASTER, ROOT, ())


@pytest.fixture
def image(tmp_path):
    """The root folder of an image that has the user psched."""
    etc = tmp_path / "image/etc"
    etc.mkdir(parents=True)
    (etc / "passwd").write_text(f"psched:x:{GROUP}:{GROUP}::/var/lib/psched:/usr/sbin/nologin\n")
    (etc / "group").write_text(f"psched:x:{GROUP}:\n")
    return etc.parent


@pytest.fixture
def install(environment, image, capsys):
    """A function that installs into the image, and returns what was printed."""

    def installing(*, dry_run=False, remove=False, run_as=False):
        installation = Installation(environment, image, dry_run=dry_run, run_as=run_as)
        installation.remove() if remove else installation.run()
        return capsys.readouterr().out

    return installing


@pytest.fixture
def strict_umask():
    """The umask of an administrator whose new files nobody else can read."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def states(shown):
    """What the output says of the files, by the end of their paths."""
    found = re.findall(r"^(\w+) +\S+/(etc/\S+)", shown, re.MULTILINE)
    return {path: state for state, path in found}


def written(folder):
    """The content and the times of all files below a folder."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.usefixtures("strict_umask")
def test_all_files_are_installed_with_their_modes_and_the_program_of_this_environment(
    install, image
):
    shown = install()

    assert set(states(shown).values()) == {"write"}
    unit = image / "etc/systemd/system/psched.service"
    text = unit.read_text()
    assert re.findall("^ExecStart=.*", text, re.MULTILINE) == [
        f"ExecStart={MASTER} -c /etc/psched/psched.yml"
    ]
    shipped = (ROOT / "systemd/psched.service").read_text()
    assert text.endswith(re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={MASTER}", shipped))
    for path in states(shown):
        status = (image / path).stat()
        mode, gid = (0o640, GROUP) if "psched.yml" in path else (0o644, 0)
        assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (mode, 0, gid)
    folders = {"etc/psched": (0o750, GROUP), "etc/systemd/system": (0o755, 0)}
    for path, expected in folders.items():
        status = (image / path).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_gid) == expected
    assert f"systemctl --root={image} enable psched" in shown


def test_the_helper_of_root_is_installed_if_it_is_asked_for_and_allows_nothing(install, image):
    shown = install(run_as=True)

    text = (image / "etc/systemd/system/psched-run-as.service").read_text()
    helper = MASTER.with_name("psched-run-as")
    assert re.findall("^ExecStart=.*", text, re.MULTILINE) == [f"ExecStart={helper} psched"]
    example = image / "etc/psched/run_as.example"
    assert not parse_list(example.read_text())
    assert not example.with_suffix("").exists()
    assert f"cp {example} {image}/etc/psched/run_as " in shown
    assert f"systemctl enable --root={image} psched-run-as.socket" in shown
    install(remove=True)
    assert not [*image.rglob("*run?as*")]


def test_an_environment_that_others_may_change_is_none_for_root(tmp_path):
    master = tmp_path / "bin/psched-master"
    master.parent.mkdir()
    master.touch()

    with pytest.raises(ConfigError, match=f"{master}: .* root must not run what others may change"):
        Environment(tmp_path, master, ROOT, ()).check_for_root()


def test_a_second_time_changes_nothing(install, image):
    install()
    before = written(image)
    assert set(states(install()).values()) == {"same"}
    assert written(image) == before


def test_a_dry_run_writes_nothing(install, image):
    before = written(image)
    shown = install(dry_run=True)
    assert len(states(shown)) == 6
    assert set(states(shown).values()) == {"write"}
    assert written(image) == before


@pytest.mark.parametrize(
    "path", ["etc/psched/psched.yml", "etc/systemd/system/psched.service", "etc/logrotate.d/psched"]
)
def test_a_changed_file_is_kept_and_the_output_says_where_the_other_is(install, image, path):
    install()
    changed = image / path
    changed.write_text(changed.read_text() + "# a change\n")
    before = written(image)

    shown = install()

    assert written(image) == before
    assert [each for each, state in states(shown).items() if state == "keep"] == [path]
    [source] = re.findall(r"psched's own is (\S+);", shown)
    assert Path(source).is_file()


def test_a_file_that_another_version_has_written_is_replaced_only_while_it_is_unchanged(tmp_path):
    source = tmp_path / "shipped"
    source.write_text("version 1\n")
    file = SystemFile(source, "/etc/file", tmp_path)
    assert file.write() is State.WRITE
    source.write_text("version 2\n")
    assert file.write() is State.REPLACE
    assert file.target.read_text().endswith("\nversion 2\n")
    source.write_text("version 3\n")
    file.target.write_text(file.target.read_text().replace("version 2", "my version"))
    assert file.write() is State.KEEP
    assert file.target.read_text().endswith("\nmy version\n")


def test_a_file_that_was_installed_by_hand_is_the_same(environment, image, install):
    for file in user_files(environment, image):
        file.target.parent.mkdir()
        file.target.write_bytes(file.source.read_bytes())
    shown = states(install())
    assert shown["etc/sysusers.d/psched.conf"] == shown["etc/tmpfiles.d/psched.conf"] == "same"


def test_a_masked_unit_stays_masked(install, image):
    unit = image / "etc/systemd/system/psched.service"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/dev/null")
    shown = install()
    assert states(shown)["etc/systemd/system/psched.service"] == "keep"
    assert unit.is_symlink()
    assert "ExecStart" not in shown


def test_what_was_installed_is_removed(install, image):
    install()
    installed = written(image)
    shown = install(remove=True, dry_run=True)
    assert written(image) == installed
    assert set(states(shown).values()) == {"remove"}

    shown = install(remove=True)

    assert set(states(shown).values()) == {"remove"}
    assert f"systemctl disable --root={image} psched" in shown
    assert [path for path in states(shown) if (image / path).exists()] == []
    assert not (image / "etc/psched").exists()
    assert set(states(install(remove=True)).values()) == {"missing"}
    assert set(states(install()).values()) == {"write"}


@pytest.mark.parametrize("path", ["etc/psched/psched.yml", "etc/systemd/system/psched.service"])
def test_what_was_changed_is_not_removed(install, image, path):
    install()
    changed = image / path
    changed.write_text(changed.read_text() + "# a change\n")
    shown = install(remove=True)
    assert [each for each, state in states(shown).items() if state == "keep"] == [path]
    assert changed.read_text().endswith("# a change\n")


def test_a_masked_unit_is_left_alone(install, image):
    unit = image / "etc/systemd/system/psched.service"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/dev/null")
    shown = install(remove=True)
    assert states(shown).pop("etc/systemd/system/psched.service") == "keep"
    assert "systemctl" not in shown
    assert unit.is_symlink()


def test_what_is_in_the_way_is_named(install, image):
    (image / "etc/logrotate.d/psched").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"etc/logrotate.d/psched: Is a directory; move it away"):
        install()


def test_a_file_in_the_place_of_a_folder_is_named(install, image):
    (image / "etc/systemd").write_text("")
    with pytest.raises(ConfigError, match=r"/image/etc/systemd: is not a folder; move it away"):
        install()


def test_without_the_user_and_a_program_that_creates_it_nothing_is_written(
    install, image, monkeypatch
):
    (image / "etc/group").unlink()
    before = written(image)
    monkeypatch.setenv("PATH", str(image))
    with pytest.raises(ConfigError, match=r"no group psched; .*useradd --system .* psched$"):
        install()
    assert written(image) == before


def test_without_systemds_programs_the_files_are_installed(install, monkeypatch, image):
    monkeypatch.setenv("PATH", str(image))
    shown = install()
    assert set(states(shown).values()) == {"write"}
    for program in "systemd-sysusers", "systemd-tmpfiles":
        assert f"skip     {program}, which is not installed" in shown
    assert stat.S_IMODE((image / "etc/psched").stat().st_mode) == 0o750


class TestEnvironment:
    @pytest.fixture
    def place(self, monkeypatch):
        """An empty folder for all users; the folder for temporary files counts as visible."""
        monkeypatch.setattr(installed, "HIDDEN", {})
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            yield Path(folder)

    @pytest.fixture
    def placed(self, place):
        master = place / "bin/psched-master"
        master.parent.mkdir()
        master.parent.chmod(0o755)
        master.write_text("")
        master.chmod(0o755)
        return Environment(place, master, ROOT, ())

    def test_a_usable_one_is_accepted(self, placed):
        placed.check()

    @pytest.mark.parametrize(
        ("path", "mode"),
        [("bin", 0o750), ("bin/psched-master", 0o644), ("bin/psched-master", 0o711)],
    )
    def test_one_that_others_cannot_use_is_refused(self, placed, place, path, mode):
        (place / path).chmod(mode)
        with pytest.raises(ConfigError, match=re.escape(f"chmod -R o+rX {place}")) as refused:
            placed.check()
        assert str(refused.value).startswith(f"{place / path}: ")

    def test_a_program_behind_a_link_is_found(self, placed, place, monkeypatch):
        home = place / "home"
        home.mkdir()
        (home / "python3").write_text("")
        (place / "bin/python").symlink_to(home / "python3")
        monkeypatch.setattr(installed, "HIDDEN", {str(home): "ProtectHome=yes"})
        linked = Environment(place, placed.master, ROOT, (place / "bin/python",))
        text = f"leads to {home}/python3: the service cannot see it, because .* hides {home};"
        with pytest.raises(ConfigError, match=text):
            linked.check()

    def test_a_path_that_systemd_would_not_read_as_it_is_is_refused(self):
        odd = Environment(Path("/opt"), Path("/opt/50% off/psched-master"), ROOT, ())
        with pytest.raises(ConfigError, match="install psched elsewhere"):
            odd.check()

    def test_the_unit_has_the_settings_that_hide_folders(self):
        unit = (ROOT / "systemd/psched.service").read_text().splitlines()
        assert set(HIDDEN.values()) <= set(unit)

    def test_this_environment_is_found_with_the_files_of_the_repository(self):
        found = Environment.current()
        assert found.shipped == ROOT
        assert found.master.parent == Path(sys.executable).parent
        assert all(
            file.source.is_file()
            for files in (user_files, service_files)
            for file in files(found, Path("/"))
        )


def test_options_that_select_a_configuration_are_refused():
    for option in "-c", "-e":
        done = CliRunner().invoke(psched, ["install-systemd", "--dry-run", option, "other"])
        assert done.exit_code == 2
        assert "systemctl edit psched" in done.output
