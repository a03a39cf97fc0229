"""`Expect: 100-continue`: the client waits for leave to send its body.

Source: RFC 9110, section 10.1.1.
"""

from typing import Final

from pdgate.protocols.call import Headers

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


def expects_continue(headers: Headers) -> bool:
    return any(name == b"expect" and found.lower() == b"100-continue" for name, found in headers)
