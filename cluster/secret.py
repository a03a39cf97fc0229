"""Secrets in files, so that neither `ps` nor a log shows them.

Errors name the file and never what is in it.
"""

from typing import Final

from pdgate.cluster import regular

MOST_BYTES: Final = 64 << 10

LEAST_CHARACTERS = 16
"""Of a token, which any client may try to guess."""


def read(path: str) -> str:
    """One line of printable ASCII, without what surrounds it. Raises ValueError."""
    try:
        secret = regular.read(path, MOST_BYTES).decode("ascii").strip()
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


LEAST_SHARED = 32
"""Characters of a secret that a fleet shares: a proof of it can be guessed at without asking."""


def several(path: str) -> list[str]:
    """Secrets that a fleet shares, one a line; `#` begins a comment. Raises ValueError."""
    try:
        lines = regular.read(path, MOST_BYTES).decode("ascii").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not ASCII") from None
    said = [line.strip() for line in lines]
    return checked([line for line in said if line and not line.startswith("#")], path)


def checked(found: list[str], where: str) -> list[str]:
    """Those that are long enough. Raises ValueError, naming `where`."""
    if not found:
        raise ValueError(f"{where} holds no secret")
    for one in found:
        if len(one) < LEAST_SHARED or not one.isascii() or not one.isprintable() or " " in one:
            raise ValueError(
                f"{where}: a secret has at least {LEAST_SHARED} printable characters and no space "
                "(openssl rand -hex 32)"
            )
    return found
