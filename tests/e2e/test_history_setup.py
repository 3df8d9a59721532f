"""Tests of `psched init --plan`, and of what `psched check` says about history and alerts."""


def test_the_plan_is_printed_and_nothing_is_changed(service):
    with service.sql() as database:
        database.execute("DROP TABLE psched_audit")
    planned = service.invoke("init", "--plan")
    assert planned.exit_code == 0
    assert "-- locks: the write lock of the file, for a moment\nCREATE TABLE" in planned.output
    assert service.invoke("init", "--plan").output == planned.output
    assert "created table psched_audit" in service.invoke("init").output
    nothing = service.invoke("init", "--plan")
    assert (nothing.exit_code, nothing.output.rpartition("is ready")[2]) == (
        0,
        "; there is nothing to do\n",
    )


def test_check_says_whether_the_history_is_kept(service):
    assert "  history: kept\n" in service.psched("check").stdout
    service.configure(history="none")
    assert "  history: none (the setting history)\n" in service.psched("check").stdout
    with service.sql() as database:
        database.execute("DELETE FROM psched_info WHERE name = 'history_version'")
    missing = service.psched("check")
    assert missing.returncode == 0
    assert "  history: not kept: the tables of the run history (psched_runs, " in missing.stdout


def test_check_says_whether_alerts_are_kept(service):
    assert "  alerts: kept\n" in service.psched("check").stdout
    with service.sql() as database:
        database.execute("DROP TABLE psched_alerts")
        database.execute("DELETE FROM psched_info WHERE name = 'alerts_version'")
    missing = service.psched("check")
    assert missing.returncode == 0
    assert "  alerts: not kept: the table psched_alerts is missing or not" in missing.stdout
    assert "created table psched_alerts" in service.invoke("init").output
    assert "  alerts: kept\n" in service.psched("check").stdout


def test_check_names_a_table_of_the_history_that_is_gone(service):
    with service.sql() as database:
        database.execute("DROP TABLE psched_runs")
    found = service.psched("check")
    assert found.returncode == 1
    assert "psched_runs" in found.stdout + found.stderr
