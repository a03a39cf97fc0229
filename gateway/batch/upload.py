"""Form with a file (multipart/form-data), written as it comes: no more than a piece of it is in memory.

Source: RFC 7578; OpenAI API reference, "Upload file": file, purpose, expires_after[seconds].
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pdgate.gateway.apis.forms import MULTIPART
from pdgate.gateway.batch.archive import Write
from pdgate.protocols.errors import BadRequest, TooLarge, UnsupportedMediaType

FILE: Final = "file"
MOST_FIELDS: Final = 32
MOST_FIELD_BYTES: Final = 4096
"""Of a field that is no file, and of the headers of a part."""
PIECE_BYTES: Final = 256 << 10
"""Written at once."""
LONGEST_NAME: Final = 255


@dataclass(slots=True)
class UploadForm:
    """What was sent.

    Attributes:
        fields: All but the file.
        filename: Empty where none came.
        file_bytes: None where no file came.
    """

    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    file_bytes: int | None = None


async def receive(
    content_type: bytes, pieces: AsyncIterator[bytes], write: Write, most_bytes: int
) -> UploadForm:
    """Write the file of a form; return the rest. Raise BadRequest, TooLarge, UnsupportedMediaType."""
    media, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not media.startswith(MULTIPART) or not boundary:
        raise UnsupportedMediaType("a file is sent as multipart/form-data, with a boundary")
    reader = _Reader(most_bytes)
    try:
        parser = reader.parser(boundary)
        async for piece in pieces:
            parser.write(piece)
            if len(reader.waiting) >= PIECE_BYTES:
                await write(reader.take())
        parser.finalize()
    except FormParserError as error:
        raise BadRequest(f"the form cannot be read: {error}") from None
    if not reader.whole:
        raise BadRequest("the form breaks off before its end")
    await write(reader.take())
    return reader.form()


class _Reader:
    """Called by the parser.

    Attributes:
        waiting: Of the file, what is not written yet.
        whole: The last boundary was there.
    """

    def __init__(self, most_bytes: int) -> None:
        self.waiting = bytearray()
        self.whole = False
        self._most_bytes = most_bytes
        self._form = UploadForm()
        self._fields: dict[str, bytearray] = {}
        self._header = self._said = b""
        self._name = ""
        self._parts = 0

    def parser(self, boundary: bytes) -> MultipartParser:
        return MultipartParser(
            boundary,
            {
                "on_part_begin": self._begins,
                "on_header_field": self._field,
                "on_header_value": self._says,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._data,
                "on_end": self._ends,
            },
        )

    def take(self) -> bytes:
        taken, self.waiting = bytes(self.waiting), bytearray()
        return taken

    def form(self) -> UploadForm:
        self._form.fields = {
            name: said.decode("utf-8", "replace") for name, said in self._fields.items()
        }
        return self._form

    def _begins(self) -> None:
        self._parts += 1
        if self._parts > MOST_FIELDS:
            raise BadRequest(f"the form has more than {MOST_FIELDS} fields")
        self._name = ""

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header = _bounded(self._header + data[start:end])

    def _says(self, data: bytes, start: int, end: int) -> None:
        self._said = _bounded(self._said + data[start:end])

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._said)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
            if self._name == FILE:
                said = options.get(b"filename", b"").decode("utf-8", "replace")
                self._form.filename = "".join(filter(str.isprintable, said))[:LONGEST_NAME]
        self._header = self._said = b""

    def _headers_end(self) -> None:
        if self._name != FILE:
            self._fields[self._name] = bytearray()
        elif self._form.file_bytes is None:
            self._form.file_bytes = 0
        else:
            raise BadRequest("the form has two files", param=FILE)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._name != FILE:
            held = self._fields[self._name]
            if len(held) + end - start > MOST_FIELD_BYTES:
                raise BadRequest(f"a field is longer than {MOST_FIELD_BYTES} bytes")
            held += data[start:end]
            return
        there = (self._form.file_bytes or 0) + end - start
        if there > self._most_bytes:
            raise TooLarge(f"the file is larger than {self._most_bytes} bytes", param=FILE)
        self._form.file_bytes = there
        self.waiting += data[start:end]

    def _ends(self) -> None:
        self.whole = True


def _bounded(header: bytes) -> bytes:
    if len(header) > MOST_FIELD_BYTES:
        raise BadRequest("a part of the form has too long headers")
    return header
