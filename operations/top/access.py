"""Where the gateway is, and the token for it, as the operator says it."""

from pathlib import Path
from urllib.parse import urlsplit

from pdgate.cluster import secret
from pdgate.operations.asking import BadAsk


def address(url: str) -> str:
    """Without a slash at the end. Raises BadAsk."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadAsk(f"{url!r} is not a URL like http://host:port")
    return url.rstrip("/")


def token_of(file: Path | None) -> str:
    """Raises BadAsk."""
    if file is None:
        raise BadAsk("a gateway shows this to admins only: --admin-token-file FILE")
    try:
        return secret.token(str(file))
    except ValueError as error:
        raise BadAsk(f"--admin-token-file: {error}") from None
