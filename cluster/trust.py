"""Whom to believe that a store is the one that it says it is: certificates in a file."""

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
