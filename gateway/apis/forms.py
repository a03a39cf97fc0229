"""Which model a form names, and where: it may have to be renamed, and nothing else touched."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pdgate.protocols.errors import BadRequest

MULTIPART: Final = b"multipart/form-data"
URL_ENCODED: Final = b"application/x-www-form-urlencoded"
MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class Form:
    """
    Attributes:
        names: Of all fields, in their order.
        model: What the field of that name says; None if there is none.
        start, end: Where it says so in the body, if it is multipart.
    """

    names: tuple[str, ...]
    model: str | None = None
    start: int = 0
    end: int = 0

    def renamed(self, body: bytes, model: str) -> bytes:
        """The same form, naming another model."""
        if self.end:
            return body[: self.start] + model.encode() + body[self.end :]
        return query_renamed(body.decode("latin-1"), model).encode("latin-1")


def read(content_type: bytes, body: bytes) -> Form | None:
    """None for what is no form. Raises BadRequest."""
    media, options = parse_options_header(content_type)
    if media == URL_ENCODED:
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
        return Form(tuple(name for name, _ in pairs), dict(pairs).get(MODEL))
    if media != MULTIPART:
        return None
    boundary = options.get(b"boundary")
    if not boundary:
        raise BadRequest("the form names no boundary between its parts")
    reader = _Reader()
    try:
        reader.read(boundary, body)
    except FormParserError as error:
        raise BadRequest(f"the form cannot be read: {error}") from None
    return reader.form(body)


def query_model(query: str) -> str | None:
    return dict(parse_qsl(query)).get(MODEL)


def query_renamed(query: str, model: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return urlencode([(name, model if name == MODEL else said) for name, said in pairs])


class _Reader:
    """Told by the parser where in the body what is; the whole body is written at once."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._header = self._value = b""
        self._spans: dict[str, tuple[int, int]] = {}

    def read(self, boundary: bytes, body: bytes) -> None:
        """Raises FormParserError."""
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part,
                "on_header_field": self._field,
                "on_header_value": self._says,
                "on_header_end": self._header_ends,
                "on_part_data": self._data,
            },
        )
        parser.write(body)
        parser.finalize()

    def form(self, body: bytes) -> Form:
        start, end = self._spans.get(MODEL, (0, 0))
        model = body[start:end].decode("utf-8", "replace") if end else None
        return Form(tuple(self._names), model, start, end)

    def _part(self) -> None:
        self._names.append("")

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _says(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._names[-1] = options.get(b"name", b"").decode("utf-8", "replace")
        self._header = self._value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        name = self._names[-1]
        first, _ = self._spans.get(name, (start, end))
        self._spans[name] = (first, end)
