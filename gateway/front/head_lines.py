"""Writes the head of a response, byte by byte."""

from http import HTTPStatus

from pdgate.protocols.call import Headers

CLOSE = b"connection: close\r\n"

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def head_lines(status: int, headers: Headers, more: bytes = b"") -> bytes:
    """`more` is whole lines."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
    for name, found in headers:
        lines += (name, b": ", found, b"\r\n")
    lines += (more, b"\r\n")
    return b"".join(lines)
