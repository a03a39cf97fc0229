"""Certificates in a file, by which a store shows that it is the right one."""

import ssl


def trusted(ca_file: str) -> ssl.SSLContext:
    """Raises OSError, also for a file without a certificate."""
    return ssl.create_default_context(cafile=ca_file)


def check_ca(path: str) -> None:
    """Raises ValueError."""
    if not path:
        return
    try:
        trusted(path)
    except ssl.SSLError:
        raise ValueError(f"{path} holds no certificate (PEM)") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
