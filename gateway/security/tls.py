"""TLS on both sides: to clients, where uvicorn does it, and to engines.

Contexts hold private keys and cannot be sent to workers, so what travels is the names of files;
each process reads them when it starts. At least TLS 1.2, as Python has it (ssl, "Security
considerations").
"""

import ssl
from typing import Any

from pdgate.cluster import regular


class UnusableTlsFile(Exception):
    """A file that TLS needs will not do; the message says which and why."""


def server_options(cert_file: str, key_file: str, client_ca_file: str) -> dict[str, Any]:
    """What uvicorn is given; nothing without a certificate. With a CA, clients need one too."""
    if not cert_file:
        return {}
    options: dict[str, Any] = {"ssl_certfile": cert_file, "ssl_keyfile": key_file or None}
    if client_ca_file:
        options |= {"ssl_ca_certs": client_ca_file, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return options


def check_server(cert_file: str, key_file: str, client_ca_file: str) -> None:
    """Raises UnusableTlsFile for what would fail when the first worker starts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_chain(context, cert_file, key_file)
    if client_ca_file:
        _load_ca(context, client_ca_file)


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
