"""PyMySQL's connection, changed in three respects."""

import ssl
from typing import Any

import pymysql
from pymysql.connections import Connection
from typing_extensions import override

from psched.config.tls import Tls
from psched.stores import encryption

_UNCHECKED = Tls(verify="none", ca=None, cert=None, key=None)

_SURELY_ACCEPTED = 200_000
"""Characters, of at most four bytes each; a statement below that is accepted by every server."""


class PyMySQLConnection(Connection):
    """A connection that checks a statement's size, and takes fewer requests and less memory.

    A server answers a statement that is too large by hanging up, and then nobody knows whether it
    was applied. This connection does not send such a statement; its error says that it was not
    applied, and why, with the number that servers give to it where they can.

    When it connects it sends nothing of its own, because each answer to wait for slows down a slow
    link.

    Where it encrypts without checking the server, it does not read the certificates of the world's
    authorities, which would take 25 ms, and memory in every worker.
    """

    _max_packet: int | None = None

    @override
    def set_character_set(self, charset: str, collation: str | None = None) -> None:
        del charset, collation  # `Dialect.begin_session` sets them

    @override
    def query(self, sql: str | bytes, unbuffered: bool = False) -> int:  # PyMySQL's own method
        if len(sql) > _SURELY_ACCEPTED:
            content = (
                sql if isinstance(sql, bytes) else sql.encode(self.encoding, "surrogateescape")
            )
            largest = self._largest_statement()
            # The byte of the command counts, too.
            if len(content) + 1 > largest:
                raise pymysql.err.DataError(
                    1153,
                    f"the statement has {len(content):,} bytes, and the server accepts {largest:,}:"
                    " raise its max_allowed_packet, or keep less in data",
                )
        return super().query(sql, unbuffered)

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:  # noqa: ANN401  # PyMySQL's
        """The SSL context for PyMySQL's options; without options, it checks nothing."""
        if sslp:
            context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # not in its stubs
            return context
        return encryption.ssl_context(_UNCHECKED)

    def _largest_statement(self) -> int:
        if self._max_packet is None:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@max_allowed_packet")
                ((self._max_packet,),) = cursor.fetchall()
        return self._max_packet
