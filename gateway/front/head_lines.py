"""Writes the head of a response, byte by byte."""

from http import HTTPStatus
from typing import Final

from pdgate.protocols.call import Headers

CLOSE: Final = b"connection: close\r\n"

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


def head_lines(status: int, headers: Headers, more: bytes = b"") -> bytes:
    """`more` is whole lines."""
    return b"".join((status_line(status), header_lines(headers), more, b"\r\n"))


def status_line(status: int) -> bytes:
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def header_lines(headers: Headers) -> bytes:
    lines: list[bytes] = []
    for name, found in headers:
        lines += (name, b": ", found, b"\r\n")
    return b"".join(lines)


class SharedLines:
    """Those that many answers have in common: uvicorn's own, of which it makes a new list each second."""

    def __init__(self) -> None:
        self._headers: Headers | None = None
        self._lines = b""

    def of(self, headers: Headers) -> bytes:
        if headers is not self._headers:
            self._headers, self._lines = headers, header_lines(headers)
        return self._lines
