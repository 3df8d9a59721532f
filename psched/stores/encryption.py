"""Creates SSL contexts from the settings ``ssl_…``, for drivers that accept a context."""

import ssl
from typing import NoReturn

from psched.config.urls import Tls


def ssl_context(tls: Tls) -> ssl.SSLContext:
    """Create an SSL context from the settings ``ssl_…``; each call reads the certificates again."""
    # The context is not created by ssl.create_default_context, because from Python 3.13 on such a
    # context refuses the certificates that MySQL creates for itself.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.verify == "full"
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    reading = "ssl_ca"
    try:
        if tls.ca is not None:
            context.load_verify_locations(tls.ca)
        reading = "ssl_cert and ssl_key"
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key, _refuse_to_ask)
    except OSError as error:
        # Neither Python's nor OpenSSL's error names the file, so our error names the setting.
        raise ValueError(f"{reading} cannot be used: {error}") from None
    return context


def _refuse_to_ask() -> NoReturn:
    """Raise an error when OpenSSL needs the password of an encrypted key.

    Without this function, OpenSSL would ask for the password at the terminal.
    """
    raise ValueError("ssl_key is encrypted; decrypt it: openssl pkey -in OLD -out NEW")
