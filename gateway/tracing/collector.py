"""Settings of the collector. Needs no OpenTelemetry."""

from urllib.parse import urlsplit

from pdgate.cluster import regular


def check_endpoint(text: str) -> str:
    """Raises ValueError."""
    if text and (urlsplit(text).scheme not in ("http", "https") or not urlsplit(text).netloc):
        raise ValueError("it is not a URL like http://host:4318")
    return text.rstrip("/")


def check_headers_file(path: str) -> str:
    """Raises ValueError."""
    headers_in(path)
    return path


def headers_in(path: str) -> dict[str, str]:
    """Name -> value; none without a file. Raises ValueError, without what the file says."""
    if not path:
        return {}
    try:
        lines = regular.read(path).decode("ascii").splitlines()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not plain ASCII") from None
    found = {}
    for number, line in enumerate(lines, start=1):
        name, colon, value = line.partition(":")
        if not line.strip() or line.startswith("#"):
            continue
        if not (colon and name.strip() and value.strip()):
            raise ValueError(f"line {number} of {path} is not `name: value`")
        found[name.strip().lower()] = value.strip()
    return found
