"""The SQL in the documentation, executed by each server's own client on a fresh server.

Where a page creates users, psched then works with the rights of these users.
"""

import re

import pytest

from psched.core.alerts.alert import Alert, Rule
from psched.testing.store_contract.announcing import listening
from support.code_blocks import OF_SERVERS, ROOT, blocks_of, server_sql, sql_blocks
from support.programs import lines, run_work, with_work
from support.servers.postgresql import ACCESS
from support.stores import store_factory

pytestmark = pytest.mark.extended

SQL_OF_DATABASES = server_sql("databases.md")
MYSQL_USER, MYSQL_ADMINISTRATOR, *SQL_OF_POSTGRESQL = SQL_OF_DATABASES
POSTGRESQL_OWNER, POSTGRESQL_RIGHTS, ANNOUNCED, REQUIRE_SSL = SQL_OF_POSTGRESQL

PASSWORD = "s3cret"

CREATE_TABLE = "CREATE TABLE another (id INTEGER);"

OLDER = (
    "DROP INDEX psched_label ON psched",
    "ALTER TABLE psched DROP COLUMN label",
    "UPDATE psched_info SET value = '0' WHERE name = 'schema_version'",
)
"""Makes the table in MariaDB one that an older psched has created."""


def with_password(sql):
    """A block with a password in place of the dots."""
    assert "'…'" in sql
    return sql.replace("…", PASSWORD)


def url_of(server, user="psched"):
    """The url of the database psched for a user whom a page has created."""
    return re.sub("//.*@", f"//{user}:{PASSWORD}@", server.url("psched"))


def succeed(service, *arguments):
    """Run the command psched; return what it prints."""
    done = service.psched(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_work(service):
    """See that the user of the service's url may do all that workers and commands do."""
    assert "rights: may be read and written: ok" in succeed(service, "check")
    succeed(service, "pause", "--type", "exec")
    succeed(service, "push", "mail-7", "exec", '{"command": ["echo", "hello"]}')
    master = service.start()
    service.add("recorded")
    service.wait_for_finish("recorded")
    # The push was due before, and has not started.
    assert service.row("mail-7").attempt == 0
    succeed(service, "resume", "--type", "exec")
    service.wait_for_finish("mail-7")
    with service.schedules() as schedules:
        assert [run.outcome for run in schedules.runs("mail-7")] == ["finished"]
    assert succeed(service, "logs", "mail-7").endswith("hello\n")
    succeed(service, "delete", "mail-7")
    assert re.search("psched delete +mail-7 +delete", succeed(service, "audit"))
    with store_factory(service.url) as open_store:
        open_store().alerts.raise_alerts(
            [Alert(key="k", rule=Rule.LATE, since=1, text="it is late")]
        )
    assert "it is late" in succeed(service, "alerts")
    assert master.stop() == 0
    assert not re.search("WARNING|ERROR", master.text)


# --- users and their rights ---


@pytest.mark.mariadb
def test_the_page_of_mysql_creates_a_user_for_workers_and_one_for_init(
    start_mariadb, send_sql, make_service
):
    server = start_mariadb()
    send_sql(server.url(), with_password(MYSQL_USER))
    send_sql(server.url(), with_password(MYSQL_ADMINISTRATOR))

    administrator = make_service(url_of(server, "psched_admin"))
    assert "created table psched\n" in succeed(administrator, "init")
    for statement in OLDER:
        server.query(statement, database="psched")
    assert "added column psched.label\n" in succeed(administrator, "init")

    check_work(make_service(url_of(server)))
    with pytest.raises(AssertionError, match="CREATE command denied to user 'psched'"):
        send_sql(url_of(server), CREATE_TABLE, password=PASSWORD)


@pytest.mark.postgresql
def test_the_page_of_postgresql_creates_a_role_that_needs_no_other_right(
    start_postgresql, send_sql, make_service
):
    server = start_postgresql()
    send_sql(server.url(), with_password(POSTGRESQL_OWNER))
    service = make_service(url_of(server))

    assert "created table psched\n" in succeed(service, "init")

    check_work(service)


@pytest.fixture
def limited(start_postgresql, send_sql, make_service):
    """A PostgreSQL where another role has created the table, and the page's rights are granted."""
    server = start_postgresql()
    send_sql(server.url(), with_password(POSTGRESQL_OWNER))
    # The page's role owns its database and so could create tables; here it has no right at all.
    server.query("ALTER DATABASE psched OWNER TO postgres")
    server.query("REVOKE ALL ON SCHEMA public FROM PUBLIC", database="psched")
    succeed(make_service(server.url("psched")), "init")
    send_sql(server.url("psched"), POSTGRESQL_RIGHTS)
    return server


@pytest.mark.postgresql
def test_the_rights_of_the_page_of_postgresql_suffice_for_workers(limited, send_sql, make_service):
    check_work(make_service(url_of(limited)))
    with pytest.raises(AssertionError, match="permission denied for schema public"):
        send_sql(url_of(limited), CREATE_TABLE, password=PASSWORD)


@pytest.mark.postgresql
def test_the_transaction_of_the_page_of_postgresql_is_heard_when_it_is_committed(limited, send_sql):
    url = url_of(limited)
    with store_factory(url) as open_store, listening(open_store()) as listener:
        send_sql(url, ANNOUNCED, password=PASSWORD)
        listener.wait()
        assert open_store().get("mail-7").type == "mail"


# --- encryption ---


def refusal(service):
    """Why the server refuses the connection of the service."""
    done = service.psched("check")
    assert done.returncode == 1
    return done.stderr


@pytest.mark.mariadb
def test_the_statement_of_the_section_about_tls_refuses_unencrypted_connections(
    start_mariadb, certificates, send_sql, make_service
):
    server = start_mariadb(certificates=certificates)
    send_sql(server.url(), with_password(MYSQL_USER))
    succeed(make_service(server.url("psched")), "init")
    service = make_service(f"{url_of(server)}?ssl_disabled=true")
    assert "encrypted: no\n" in succeed(service, "check")

    send_sql(server.url(), REQUIRE_SSL)

    assert "Access denied for user 'psched'" in refusal(service)
    service.configure(url=url_of(server), ssl_ca=str(certificates.authority))
    assert "encrypted: TLSv1." in succeed(service, "check")

    assert "REQUIRE X509: a client's certificate, too" in REQUIRE_SSL
    send_sql(server.url(), REQUIRE_SSL.replace("REQUIRE SSL", "REQUIRE X509"))

    assert "Access denied for user 'psched'" in refusal(service)
    service.configure(
        ssl_cert=str(certificates.client_certificate), ssl_key=str(certificates.client_key)
    )
    assert "encrypted: TLSv1." in succeed(service, "check")


@pytest.mark.postgresql
def test_the_lines_of_the_section_about_tls_refuse_unencrypted_connections(
    start_postgresql, certificates, send_sql, make_service
):
    page = ROOT / "docs/databases.md"
    [lines] = [each.text for each in blocks_of(page, page.read_text()) if "pg_hba" in each.text]
    server = start_postgresql(certificates=certificates)
    send_sql(server.url(), with_password(POSTGRESQL_OWNER))
    service = make_service(f"{url_of(server)}?sslmode=disable")
    succeed(service, "init")
    assert "encrypted: no\n" in succeed(service, "check")

    # The server's own lines, which follow, let everybody log in without encryption.
    (server.data / "pg_hba.conf").write_text(lines + ACCESS)
    server.restart()

    assert "pg_hba.conf" in refusal(service)
    service.configure(url=url_of(server), ssl_ca=str(certificates.authority))
    assert "encrypted: TLSv1." in succeed(service, "check")


# --- what works on every database ---

EVERYWHERE = [each for each in sql_blocks() if not OF_SERVERS.search(each.text)]
BY_PAGE = {
    page: [each.text for each in EVERYWHERE if each.page.name == page]
    for page in {each.page.name for each in EVERYWHERE}
}


def for_database(database, sql):
    """A block of the page of the tables, as the page says that this database needs it."""
    text = "CAST(output AS TEXT)"
    if database.kind == "mariadb":
        return re.sub(r"\b(key|count|until)\b", r"`\1`", sql.replace(text, "output"))
    return sql.replace(text, "encode(output, 'escape')") if database.kind == "postgresql" else sql


@pytest.mark.usefixtures("each_service")
def test_the_statements_of_each_page_work_on_every_database(database, send_sql):
    for block in EVERYWHERE:
        sql = for_database(database, block.text) if block.page.name == "table.md" else block.text
        send_sql(database.url, f"BEGIN;\n{sql}\nROLLBACK;\n")


def test_the_statements_of_the_queue_do_what_their_comments_say(each_service, database, send_sql):
    [block] = BY_PAGE["queue.md"]
    assert send_sql(database.url, block) in {"waiting|", "waiting\tNULL"}

    with each_service.schedules() as schedules:
        assert {each.key for each in schedules} == {"later", "careful"}
        begun = schedules.now()
    queue = with_work(each_service)
    (queue.folder / "fail").touch()
    master = run_work(queue)
    careful = queue.wait_for_row("careful", lambda seen: seen.row.attempt and not seen.row.owner)
    assert careful.row.next_run_time >= begun + 5
    queue.wait_for_row("later", lambda seen: seen.next_run_time == 1_900_000_000)
    assert lines(queue, "ran") == ["careful {}"]
    assert master.stop() == 0
    [again, *_] = block.splitlines()
    send_sql(database.url, again)
    with pytest.raises(AssertionError, match=r"UNIQUE|Duplicate|duplicate"):
        send_sql(database.url, again)


def test_the_statement_about_pings_names_the_ping(each_service, database, send_sql):
    [block] = BY_PAGE["alerts.md"]
    send_sql(database.url, block)
    assert re.search("^ping: +backup", succeed(each_service, "show", "weekly"), re.MULTILINE)


def test_the_queries_of_the_records_find_runs_output_and_alerts(each_service, database, send_sql):
    per_key, output, alerts = (for_database(database, sql) for sql in BY_PAGE["table.md"])
    master = each_service.start()
    each_service.add("k", "exec", data={"command": ["printf", "out of memory"]})
    each_service.add("other", "exec", data={"command": ["echo", "well"]})
    for key in "k", "other":
        each_service.wait_for_finish(key)
    assert master.stop() == 0
    with store_factory(database.url) as open_store:
        store = open_store()
        late = Alert(key="k", rule=Rule.LATE, since=1, text="it is late")
        store.alerts.raise_alerts(
            [late, Alert(key="over", rule=Rule.LATE, since=1, text="it was late")]
        )
        store.alerts.close_alerts([late], "it has started")

    def ask(sql):
        return [re.split(r"[|\t]", line) for line in send_sql(database.url, sql).splitlines()]

    assert [row[:2] for row in ask(per_key)] == [["k", "1"], ["other", "1"]]
    if database.kind == "sqlite":
        output = output.replace("output LIKE", "CAST(output AS TEXT) LIKE")
    elif database.kind == "postgresql":
        output = output.replace("output FROM", "encode(output, 'escape') FROM")
    assert ask(output) == [["k", "1", "out of memory"]]
    assert ask(alerts) == [["over", "", "late", "it was late"]]
