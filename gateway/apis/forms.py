"""Model that a form names, and where: it may have to be renamed, and nothing else touched.

    application/x-www-form-urlencoded    fields between & (and ;, as python-multipart reads them)
    multipart/<anything>                 parts, each with a name in its content-disposition

What a form costs is bounded by how many fields it may have (Starlette's bound), and by how long
one that is encoded for URLs may be: 0.35 s a MiB of "a&a&" otherwise.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from pdgate.protocols.errors import BadRequest, TooLarge, UnsupportedMediaType

MULTIPART: Final = b"multipart/"
URL_ENCODED: Final = b"application/x-www-form-urlencoded"
MODEL: Final = "model"
MOST_FIELDS: Final = 1000
MOST_URL_ENCODED_BYTES: Final = 256 << 10
_CHARSETS: Final = frozenset({b"", b"utf-8", b"utf8", b"us-ascii", b"ascii"})


@dataclass(frozen=True, slots=True)
class FormPart:
    """One field of a form.

    Attributes:
        start, end: Where in the body its value is; both 0 in one that is encoded for URLs.
        headers: Of a part, names in lower case.
    """

    name: str
    value: bytes
    start: int = 0
    end: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    parts: tuple[FormPart, ...]
    multipart: bool

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)

    @property
    def model(self) -> str | None:
        """What the last field of that name says, as engines read it."""
        named = [part.value for part in self.parts if part.name == MODEL]
        return named[-1].decode("utf-8", "replace") if named else None

    def renamed(self, body: bytes, model: str) -> bytes:
        """The same form, naming another model."""
        if not self.multipart:
            return query_renamed(body.decode("latin-1"), model).encode("latin-1")
        for part in reversed(self.parts):
            if part.name == MODEL:
                body = body[: part.start] + model.encode() + body[part.end :]
        return body


def read(content_type: bytes, body: bytes) -> Form | None:
    """None for what is no form. Raises BadRequest, TooLarge, UnsupportedMediaType."""
    media, options = parse_options_header(content_type)
    if media != URL_ENCODED and not media.startswith(MULTIPART):
        return None
    if options.get(b"charset", b"").strip().lower() not in _CHARSETS:
        # Engines would read other names in it than we do.
        raise UnsupportedMediaType("forms are read as UTF-8")
    if media == URL_ENCODED:
        if len(body) > MOST_URL_ENCODED_BYTES:
            raise TooLarge(f"a form of this type is larger than {MOST_URL_ENCODED_BYTES} bytes")
        pairs = pairs_in(body.decode("latin-1"))
        return Form(tuple(FormPart(name, said.encode()) for name, said in pairs), multipart=False)
    boundary = options.get(b"boundary")
    if not boundary or content_type.lower().count(b"boundary") > 1:
        raise BadRequest("the form has to name one boundary between its parts")
    reader = _FormReader()
    try:
        reader.read(boundary, body)
    except FormParserError as error:
        raise BadRequest(f"the form cannot be read: {error}") from None
    return Form(reader.parts(body), multipart=True)


def pairs_in(text: str) -> list[tuple[str, str]]:
    """Of a query, or a form like one. Raises BadRequest."""
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="replace")
    except ValueError:
        raise _too_many() from None


def query_model(query: str) -> str | None:
    """Raises BadRequest."""
    return dict(pairs_in(query)).get(MODEL) or None


def query_renamed(query: str, model: str) -> str:
    pairs = pairs_in(query)
    return urlencode([(name, model if name == MODEL else said) for name, said in pairs])


def _too_many() -> BadRequest:
    return BadRequest(f"the form has more than {MOST_FIELDS} fields")


class _FormReader:
    """Called by the parser with where in the body what is; the whole body is written at once."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._headers: list[list[tuple[bytes, bytes]]] = []
        self._header = self._value = b""
        self._spans: list[tuple[int, int]] = []

    def read(self, boundary: bytes, body: bytes) -> None:
        """Raises FormParserError, BadRequest."""
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

    def parts(self, body: bytes) -> tuple[FormPart, ...]:
        return tuple(
            FormPart(name, body[start:end], start, end, tuple(headers))
            for name, (start, end), headers in zip(
                self._names, self._spans, self._headers, strict=True
            )
        )

    def _part(self) -> None:
        if len(self._names) == MOST_FIELDS:
            raise _too_many()
        self._names.append("")
        self._spans.append((0, 0))
        self._headers.append([])

    def _field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _says(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        name = self._header.lower()
        self._headers[-1].append((name, self._value))
        if name == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._names[-1] = options.get(b"name", b"").decode("utf-8", "replace")
        self._header = self._value = b""

    def _data(self, data: bytes, start: int, end: int) -> None:
        first, last = self._spans[-1]
        self._spans[-1] = (first if last else start, end)
