"""`pdgate` without its fast front end, as with a uvicorn that this one does not know."""

from unittest.mock import patch

from pdgate.__main__ import main
from pdgate.gateway.front import hot_protocol

if __name__ == "__main__":
    with patch.object(hot_protocol, "why_not", return_value="the benchmark asks for the other"):
        main()
