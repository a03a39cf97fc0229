"""Secrets are read from files, so that neither `ps` nor a log shows them.

Errors name the file and never what is in it.
"""

from pathlib import Path

LEAST_CHARACTERS = 16
"""Of a token, which whoever can connect may try to guess."""


def read(path: str) -> str:
    """One line of printable ASCII, without what surrounds it. Raises ValueError."""
    try:
        secret = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not ASCII") from None
    if not secret or not secret.isprintable():
        raise ValueError(f"{path} must hold one line of printable characters")
    return secret


def token(path: str) -> str:
    """What a header may carry. Raises ValueError."""
    found = read(path)
    if len(found) < LEAST_CHARACTERS or " " in found:
        raise ValueError(
            f"{path} must hold at least {LEAST_CHARACTERS} characters, none of them a space"
        )
    return found
