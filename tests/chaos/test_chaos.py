"""Real masters amid faults that nobody has tried before; bin/chaos does the same for longer."""

import secrets

import pytest

from support.chaos.run import Chaos


def keeps_its_promises(folder, seconds, server=None):
    seed = secrets.randbelow(10**9)
    kind = "sqlite" if server is None else server.kind
    result = Chaos(folder, seed, seconds, server).run()
    command = f"bin/chaos --seconds {seconds} --seed {seed} --store {kind}"
    assert not result.violations, f"{result.report}\n{result.line}\n{command}"


def test_some_seconds(tmp_path):
    keeps_its_promises(tmp_path, 15)


@pytest.mark.once
def test_two_minutes(tmp_path):
    keeps_its_promises(tmp_path, 120)


@pytest.mark.once
@pytest.mark.mariadb
def test_two_minutes_on_mariadb(tmp_path, start_mariadb):
    keeps_its_promises(tmp_path, 120, start_mariadb())


@pytest.mark.once
@pytest.mark.postgresql
def test_two_minutes_on_postgresql(tmp_path, start_postgresql):
    keeps_its_promises(tmp_path, 120, start_postgresql())


@pytest.mark.once
@pytest.mark.redis
def test_two_minutes_on_redis(tmp_path, start_redis):
    keeps_its_promises(tmp_path, 120, start_redis())


@pytest.mark.once
@pytest.mark.dynamodb
def test_some_seconds_on_dynamodb(tmp_path, dynalite):
    keeps_its_promises(tmp_path, 30, dynalite)
