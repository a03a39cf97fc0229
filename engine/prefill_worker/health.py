"""Whether the engine beside a worker can compute: what it takes for a dead one would only fail."""

import http.client
from http import HTTPStatus
from urllib.parse import urlsplit

PATH = "/health"
ANSWER_SECONDS = 2.0


class Health:
    """Asks the engine each time it is called. Any 200 from /health counts, as vLLM says it."""

    def __init__(self, url: str) -> None:
        """Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"the engine must be http://host:port, not {url!r}")
        self._host, self._port = parts.hostname, parts.port or 80

    def __call__(self) -> bool:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", PATH)
            return connection.getresponse().status == HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
