"""A whole service on DynamoDB's protocol: the commands, deaths of workers and of hosts."""

import subprocess
import sys

import pytest

from support.dynamodb_faults import troubled, write_credentials
from support.processes import kill
from support.servers.dynalite import CREDENTIALS

pytestmark = pytest.mark.dynamodb


@pytest.fixture
def table(dynalite):
    return dynalite.new_table()


@pytest.fixture
def make_host(dynalite, table, make_service):
    """A function that makes one host's service on the same table."""

    def make(**settings):
        made = make_service(dynalite.url(), table=table, **settings)
        made.env |= CREDENTIALS
        return made

    return make


@pytest.fixture
def service(make_host):
    return make_host()


def test_the_commands_say_what_they_say_on_any_database(service, dynalite, table):
    done = service.psched("list", "--legacy")
    assert done.returncode == 1
    assert "run `psched init`" in done.stderr
    planned = service.psched("init", "--plan")
    assert "\naws dynamodb create-table --cli-input-json '{" in planned.stdout
    done = service.psched("init", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"created {table} in DynamoDB at http://127.0.0.1:")
    assert service.psched("add", "s1", "recorder", "@daily", '{"k": "é"}').returncode == 0
    done = service.psched("add", "s1", "recorder", "@daily")
    assert (done.returncode, done.stdout) == (1, "")
    assert "the key 's1' is taken" in done.stderr
    assert "s1" in service.psched("list", "--legacy").stdout
    done = service.psched("check")
    assert (done.returncode, done.stderr) == (0, "")
    _, facts = done.stdout.split(f"database: {dynalite.url()}, table {table}\n")
    shown = dict(line.strip().split(": ", 1) for line in facts.splitlines())
    assert shown["claims by"] == "conditional writes"
    assert shown["clock"].endswith(" s from this host's")
    assert shown["rights"] == "may be read and written: ok"
    assert shown["history"] == "not kept: this store cannot keep one"
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in done.stdout
    assert service.psched("pause", "s1").returncode == 0
    assert service.psched("resume", "s1").returncode == 0
    assert service.psched("delete", "s1").returncode == 0
    assert "no schedule has the key 's1'" in service.psched("delete", "s1").stderr


def test_a_worker_creates_the_table_if_it_may(make_host, table):
    host = make_host(create_table=True)
    master = host.start()
    master.wait_for_log(f"created {table} in DynamoDB")
    assert host.psched("push", "t", "recorder", "{}").returncode == 0
    host.wait_for_finish("t")
    assert master.stop() == 0


def test_what_a_killed_worker_held_is_run_again_at_once(service):
    service.init()
    service.configure(alive_time=600)
    master = service.start()
    assert service.psched("add", "s", "recorder", "@every 1").returncode == 0
    assert service.psched("push", "t", "recorder", '{"until": "gate"}').returncode == 0
    [run] = service.runs.wait("t")
    kill(run.worker, 9)
    service.runs.wait("t", lambda runs: len(runs) == 2)
    service.open_gate("gate")
    waited = service.psched("push", "t", "{}", "--wait")
    assert (waited.returncode, waited.stdout) == (0, "t: finished\n")
    service.runs.wait("s", lambda runs: len(runs) >= 2)
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in master.text
    assert master.stop() == 0


def test_another_host_takes_over_what_a_dead_host_held(make_host):
    ours, theirs = (make_host(alive_time=6, database_timeout=1) for _ in range(2))
    ours.init()
    assert ours.psched("push", "t", "recorder", '{"until": "gate"}').returncode == 0
    master = ours.start()
    ours.runs.wait("t")
    other = theirs.start()
    theirs.open_gate("gate")
    assert not theirs.runs.runs("t")
    master.kill()
    [run] = theirs.runs.wait("t")
    assert run.fence == 2
    theirs.psched("push", "t", "{}", "--wait")
    assert other.stop() == 0


def test_a_worker_goes_on_with_credentials_that_were_renewed(
    dynalite, table, make_service, tmp_path
):
    file = tmp_path / "credentials"
    write_credentials(file, "OLD")
    with troubled(dynalite.port) as aws:
        service = make_service(aws.url, table=table)
        service.env |= {**CREDENTIALS, "AWS_SHARED_CREDENTIALS_FILE": str(file)}
        for name in "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY":
            service.env.pop(name)
        service.init()
        master = service.start()
        assert service.psched("push", "t", "recorder", '{"until": "gate"}').returncode == 0
        service.runs.wait("t")
        aws.accepted = "NEW"
        master.wait_for_log("the AWS credentials have expired; renew them")
        service.open_gate("gate")
        write_credentials(file, "NEW")
        waited = service.psched("push", "t", "{}", "--wait")
        assert (waited.returncode, waited.stdout) == (0, "t: finished\n")
        assert len(service.runs.runs("t")) == 1
        for secret in "secretaccesskey", "sessiontoken":
            assert secret not in master.text
        assert master.stop() == 0


def test_a_service_runs_on_simpledb(make_service, simpledb):
    service = make_service(simpledb.url(), table=simpledb.new_domain())
    service.env |= CREDENTIALS
    assert service.psched("init").stdout.startswith("created psched_")
    assert service.psched("check").returncode == 0
    master = service.start()
    assert service.psched("push", "t", "recorder", '{"k": "\u00e9"}').returncode == 0
    waited = service.psched("push", "t", "{}", "--wait")
    assert (waited.returncode, waited.stdout) == (0, "t: finished\n")
    assert master.stop() == 0


def test_without_the_driver_the_fix_is_named(service):
    code = (
        "import sys; sys.modules['botocore'] = None; sys.argv[0] = 'psched'\n"
        "from psched.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "list"]
    done = subprocess.run(
        command,
        env={**service.env, "PSCHED_CONFIG": str(service.config)},
        cwd=service.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "type: dynamodb needs boto3: pip install 'psched[aws]'" in done.stderr
