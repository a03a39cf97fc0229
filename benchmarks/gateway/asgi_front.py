"""`pdgate` on uvicorn's own connections: the plain ASGI way, as any other server would have it."""

from unittest.mock import patch

from pdgate.__main__ import main
from pdgate.gateway import server

if __name__ == "__main__":
    with patch.object(server, "HotProtocol", "httptools"):
        main()
