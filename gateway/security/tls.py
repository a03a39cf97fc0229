"""TLS on both sides: to clients (gateway/front/handshake.py), and to engines.

Contexts hold private keys and cannot be sent to workers, so what travels is the names of files;
each process reads them when it starts. At least TLS 1.2, as Python has it (ssl, "Security
considerations").
"""

import ssl
from typing import Any, Final

from pdgate.cluster import regular

MAX_HANDSHAKE_BYTES: Final = 32 << 10
"""Of a client: its hello is 2 KiB, a chain of certificates mostly less than 8. OpenSSL itself takes 128 KiB of a hello
and 100 of a chain, and holds each byte up to four times."""


class UnusableTlsFile(Exception):
    """A file that TLS needs will not do; the message says which and why."""


class BoundedObject(ssl.SSLObject):
    """TLS of one connection. Its handshake fails when it has brought more than MAX_HANDSHAKE_BYTES."""

    incoming: ssl.MemoryBIO
    handshake_bytes = 0

    def do_handshake(self) -> None:
        before = self.incoming.pending
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            # All that was taken is of the handshake; behind its end a request may come in the same read.
            self.handshake_bytes += before - self.incoming.pending
            if self.handshake_bytes > MAX_HANDSHAKE_BYTES:
                raise ssl.SSLError("the handshake is too long") from None
            raise


class BoundedContext(ssl.SSLContext):
    """Of a server."""

    sslobject_class = BoundedObject

    def wrap_bio(self, incoming: ssl.MemoryBIO, *others: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, *others, **named)
        assert isinstance(made, BoundedObject)
        made.incoming = incoming
        return made


def server_context(cert_file: str, key_file: str, client_ca_file: str) -> BoundedContext:
    """With a CA, clients need a certificate too. Raises UnusableTlsFile."""
    context = BoundedContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, cert_file, key_file)
    if client_ca_file:
        _load_ca(context, client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def engine_context(ca_file: str = "", cert_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """TLS context for engines with https URLs, whose names are checked. Raise UnusableTlsFile.

    `ca_file` replaces the system's authorities; `cert_file` is what engines are shown.
    """
    if ca_file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_ca(context, ca_file)
    else:
        context = ssl.create_default_context()
    if cert_file:
        _load_chain(context, cert_file, key_file)
    return context


def _load_chain(context: ssl.SSLContext, cert_file: str, key_file: str) -> None:
    try:
        for file in filter(None, (cert_file, key_file)):
            regular.check(file)
        # Without a function OpenSSL would ask at the terminal.
        context.load_cert_chain(cert_file, key_file or None, password=_no_password)
    except (OSError, ValueError) as error:
        files = " and ".join(name for name in (cert_file, key_file) if name)
        raise UnusableTlsFile(f"{files} cannot be used: {_why(error)}") from None


def _load_ca(context: ssl.SSLContext, file: str) -> None:
    try:
        regular.check(file)
        context.load_verify_locations(cafile=file)
    except OSError as error:
        raise UnusableTlsFile(f"{file} cannot be used: {_why(error)}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is there to type its password")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        # KEY_VALUES_MISMATCH
        return (error.reason or "it is not PEM").replace("_", " ").lower()
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
