"""Configurations and code that other users may write are refused."""

import os
import sys
from pathlib import Path

import pytest

from psched.base import loader
from psched.base.errors import ConfigError, LoadError
from psched.config import from_mapping, load, read_raw
from psched.config.remarks import is_unverified, remarks
from psched.handlers.configured import load_handlers

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
NOBODY, NO_ACCOUNT = 65534, 54321


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A configuration; the current folder is that in which it is found."""
    path = tmp_path / "config" / "psched.yml"
    path.parent.mkdir()
    path.write_text("url: sqlite:////none\n")
    monkeypatch.chdir(tmp_path)
    return path


def problem(file):
    with pytest.raises(ConfigError) as refused:
        load(file, environ={})
    with pytest.raises(ConfigError) as found:
        load(environ={}, cwd=file.parent.parent)
    assert str(refused.value) == str(found.value)
    with pytest.raises(ConfigError, match=r"may be written by|belongs to"):
        read_raw(file)
    return str(refused.value)


@pytest.mark.parametrize(("place", "mode"), [("config/psched.yml", 0o666), ("config", 0o777)])
def test_a_configuration_that_everybody_may_write_or_replace_is_refused(
    tmp_path, file, place, mode
):
    (tmp_path / place).chmod(mode)
    assert problem(file) == (
        f"{file}: is refused, because whoever may write it can run code: {tmp_path / place} may be"
        " written by everybody on this host; run `chmod o-w` on it"
    )


@as_root
@pytest.mark.parametrize("place", ["config/psched.yml", "config"])
def test_one_of_another_user_is_refused_but_not_one_of_nobody_here(tmp_path, file, place):
    os.chown(tmp_path / place, NOBODY, 0)
    assert problem(file).endswith(
        f"{tmp_path / place} belongs to user nobody, who could choose what user root runs; give it"
        " to root, or do this as user nobody"
    )
    os.chown(tmp_path / place, NO_ACCOUNT, 0)  # as if it were mounted into a container
    assert load(file, environ={}).origin == file


def test_a_link_is_as_safe_as_what_it_leads_to(tmp_path, file):
    link = tmp_path / "link.yml"
    link.symlink_to(file)
    file.parent.chmod(0o777)
    with pytest.raises(ConfigError, match="config may be written by everybody"):
        load(link, environ={})


def test_a_checkout_under_any_umask_and_a_file_in_tmp_are_accepted(file):
    file.chmod(0o664)
    file.parent.chmod(0o775)
    settings = load(file, environ={})
    found = [each.partition(" may")[0] for each in remarks(settings)]
    assert found == [f"the group of {place}" for place in (file.parent, file)]
    file.parent.chmod(0o1777)
    assert load(file, environ={}).origin == file
    assert load("/dev/null", environ={"HOME": "/x"})


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_no_module_is_loaded_from_a_folder_that_everybody_may_write(tmp_path, monkeypatch, mode):
    monkeypatch.setattr(sys, "path", [*sys.path])
    folder = tmp_path / "lib"
    folder.mkdir()
    (folder / "psched_jobs.py").write_text("def run(task): pass")
    folder.chmod(mode)
    for settings in (
        {"load_path": str(folder), "dispatch": "psched_jobs:D"},
        {"script": f"{folder}/psched_jobs.py"},
    ):
        with pytest.raises(LoadError, match=f"{folder} may be written by everybody on this host"):
            load_handlers(from_mapping({"url": "memory:", **settings}))
    assert str(folder) not in sys.path


@as_root
def test_nor_from_one_of_another_user(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    os.chown(tmp_path, NOBODY, 0)
    with pytest.raises(LoadError, match="belongs to user nobody"):
        loader.extend_path([str(tmp_path)])


def test_nor_a_file_that_everybody_may_write(tmp_path, monkeypatch):
    module = tmp_path / "psched_jobs.py"
    module.write_text("1 / 0")
    module.chmod(0o666)
    with pytest.raises(LoadError, match="may be written by everybody"):
        loader.load_module(str(module))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match="may be written by everybody"):
        loader.load_module("psched_jobs")


def test_nor_is_a_program_run_that_everybody_may_write(tmp_path):
    program = tmp_path / "work"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    with pytest.raises(LoadError, match=f"exec: {program} may be written by everybody"):
        load_handlers(from_mapping({"url": "memory:", "exec": str(program)}))


def test_a_secret_that_everybody_may_read_is_told(file):
    def told():
        return [each for each in remarks(load(file, environ={"PW": "Xsecret"})) if "read" in each]

    file.write_text("url: mysql://u:Xsecret@localhost/x\n")
    assert told() == [
        f"everybody on this host may read {file}, which contains a secret: run `chmod o-r`"
    ]
    file.chmod(0o640)
    assert told() == []
    file.chmod(0o644)
    file.write_text("url: mysql://u:${PW}@localhost/x\n")
    assert told() == []


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("mysql://u:p@db/x", True),
        ("mysql://u:p@db/x?ssl_ca=/ca.pem", False),
        ("mysql://u:p@localhost:3306/x", False),
        ("mysql:///x?unix_socket=/run/m.sock", False),
        ("postgresql://u:p@db/x", True),
        ("postgresql://u:p@db/x?sslmode=require", True),
        ("postgresql://u:p@db/x?sslmode=verify-full", False),
        ("postgresql://u:p@db,localhost/x", True),
        ("postgresql:///x?host=db", True),
        ("postgresql:///x?host=/run/postgresql", False),
        ("postgresql://u:p@[::1]:5432/x", False),
        ("redis://cache", True),
        ("redis://127.0.0.1", False),
        ("rediss://cache", False),
        ("redis+sentinel://a,b/s/0", True),
        ("unix:///run/redis.sock", False),
        ("sqlite:////none", False),
        ("memory:", False),
    ],
)
def test_a_server_elsewhere_that_nobody_verifies_is_told(url, meant):
    settings = from_mapping({"url": url})
    assert is_unverified(settings) is meant
    assert any("is not verified" in each for each in remarks(settings)) is meant


def test_a_server_is_verified_by_its_authority(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.touch()
    url = "mysql://u:p@db/x"
    assert not is_unverified(from_mapping({"url": url, "ssl_ca": str(authority)}))
    assert is_unverified(from_mapping({"url": url, "ssl_verify": "none"}))
    authority.chmod(0o666)
    with pytest.raises(ConfigError, match=r"ssl_ca: .*may be written by everybody"):
        from_mapping({"url": url, "ssl_ca": str(authority)})


def test_the_current_folder_may_be_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    Path(gone).rmdir()
    assert from_mapping({"url": "memory:"}, cwd=tmp_path).allowed_programs is True
