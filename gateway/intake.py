"""Intake: from what a client sent to a Call, or to the error that says what is wrong with it.

Nothing that an engine would take is refused, except what would let a client choose
which peer an engine dials: kv_transfer_params and its like kill engines when they are wrong
(vLLM 0.32.0 asserts on them), and are the gateway's to set. And what costs all clients' time: the
bounds of protocols/fields.py, which no call of a good client reaches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.upstream.settings import FORWARDED
from pdgate.protocols import request_id
from pdgate.protocols.apis import APIS, GENERATE, NATIVE, Api, Kind
from pdgate.protocols.call import (
    BYTES_PER_TOKEN,
    CHAT,
    COMPLETIONS,
    Call,
    Headers,
    Json,
    Raw,
    encode,
    parse_object,
    value,
)
from pdgate.protocols.errors import BadRequest, TooLarge, UnsupportedMediaType
from pdgate.protocols.fields import is_true
from pdgate.protocols.inline_media import LEAST_BYTES, counted_beside, counted_bytes
from pdgate.protocols.internal import OUR_PREFIXES, OURS
from pdgate.protocols.sampling import EXTRA, SAMPLING, object_in

HOT_PATHS = frozenset({CHAT, COMPLETIONS})
TAKEN = frozenset((*HOT_PATHS, *APIS))
"""Of which POST is a call that the front ends take before the framework."""

UNMISTAKABLE = frozenset(
    {"kv_transfer_params", "ec_transfer_params", "disagg_spec", "disaggregated_params"}
)
ENGINES_OWN = frozenset(
    {
        "encoder_urls", "http_worker_ipc", "kv_router_hint", "mm_content_hashes", "mm_hashes",
        "need_wait_for_mm_inputs", "num_items_assigned",
    }
)  # fmt: skip
"""By which the parts of one engine know each other: SGLang's own route takes them of any client. They say where
outputs go, which encoder and which peer's cache are asked, and as which picture a picture is kept.

Source: SGLang 001067f, srt/managers/io_struct.py (GenerateReqInput)."""
HOLDERS = ("vllm_xargs", "extra_args", "extra_body")
"""Objects whose fields some engines treat as if they stood at the top."""


_ORDINARY = frozenset(
    {
        "frequency_penalty",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "n",
        "presence_penalty",
        "prompt",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "user",
    }
)
"""Most calls have no other fields, which one comparison of sets tells."""

READ_AT_ONCE_BYTES = 4 << 20
"""Longer bodies are read in a thread of their own, which leaves the event loop its time."""

_JSON = b"application/json"
_READ = frozenset({b"content-type", b"content-encoding", b"x-request-id"})


@dataclass(frozen=True, slots=True)
class Intake:
    """
    Attributes:
        forwarded: Names, in lower case, of the headers that engines get.
        own_fields: What is refused besides OURS and ENGINES_OWN: the protocols' own.
        aliases: Other names of models -> the name by which engines know them.
    """

    max_body_bytes: int
    trust_client_kv_params: bool = False
    forwarded: frozenset[bytes] = FORWARDED
    own_fields: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    _of_interest: frozenset[bytes] = field(init=False)
    _rarely: frozenset[bytes] = field(init=False)
    _ordinary: frozenset[str] = field(init=False)
    _ours: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        # Most headers are none of these, which one look tells.
        object.__setattr__(self, "_of_interest", self.forwarded | _READ)
        object.__setattr__(self, "_rarely", self._of_interest - {b"content-type"})
        object.__setattr__(self, "_ordinary", _ORDINARY - self.own_fields)
        object.__setattr__(self, "_ours", OURS | ENGINES_OWN | self.own_fields)

    def check_length(self, length: int) -> None:
        """Raises TooLarge."""
        if length > self.max_body_bytes:
            raise TooLarge(f"the request body is larger than {self.max_body_bytes} bytes")

    def call_id(self, request_headers: RequestHeaders) -> str:
        """The client's x-request-id if it may be used, else a new one."""
        if b"x-request-id" not in request_headers.named:
            return request_id.new()
        for name, found in request_headers.all:
            if name == b"x-request-id":
                said = found.decode("latin-1")
                if request_id.usable(said) and not self._carries_address(said):
                    return said
        return request_id.new()

    def call(self, path: str, request_headers: RequestHeaders, body: bytes, call_id: str) -> Call:
        """Raises BadRequest, UnsupportedMediaType."""
        passed = self._passed(request_headers)
        fields = parse_object(body)
        if not (self.trust_client_kv_params or self._ordinary.issuperset(fields)):
            _refuse_ours(fields, self._ours)
        model = value(fields, "model")
        if model is not None and not isinstance(model, str):
            raise BadRequest("the model must be a string", param="model")
        if self.aliases and model is not None and model in self.aliases:
            model = self.aliases[model]
            fields["model"] = Raw(encode(model))
        size = counted = len(body)
        if size > LEAST_BYTES:
            counted = counted_bytes(body)
        api = APIS.get(path)
        if api is not None:
            return self._of_api(api, call_id, fields, passed, model, counted, counted != size)
        asked = fields.get("stream")
        # As most who ask for it write it.
        streams = asked is not None and (
            (len(asked) == 4 and bytes(asked) == b"true") or is_true(value(fields, "stream"))
        )
        # By position, as every call is made here. The second is `request_id.attempt`.
        return Call(
            call_id,
            f"{call_id}-{request_id.new()}",
            path,
            fields,
            passed,
            model,
            streams,
            counted // BYTES_PER_TOKEN,
            counted != size,
        )

    def _of_api(
        self,
        api: Api,
        call_id: str,
        fields: Json,
        passed: Headers,
        model: str | None,
        counted_bytes: int,
        has_media: bool,
    ) -> Call:
        """Raises BadRequest."""
        self.check_id(value(fields, "request_id"))
        if api.path == GENERATE:
            sampling = object_in(fields, SAMPLING)
            object_in(sampling, EXTRA)
            self.check_fields(sampling)
        if api.path == GENERATE or api.path == NATIVE:
            counted_bytes = counted_beside(fields, counted_bytes)
        reads = api.kind in (Kind.GENERATES, Kind.READS)
        return Call(
            id=call_id,
            attempt_id=request_id.attempt(call_id),
            path=api.path,
            body=fields,
            headers=passed,
            model=model,
            streams=api.kind is Kind.GENERATES and is_true(value(fields, "stream")),
            prompt_tokens=counted_bytes // BYTES_PER_TOKEN if reads else 0,
            has_media=has_media,
            # What these leave in a cache, if anything, no chat begins with.
            blocks=None if api.kind is Kind.GENERATES else (),
            api=api,
        )

    def _passed(self, request_headers: RequestHeaders) -> Headers:
        """As `_checked`, which most need not go through: JSON, and nothing else that is read."""
        named = request_headers.named
        if (
            request_headers.twice
            or named.get(b"content-type", _JSON) != _JSON
            or not self._rarely.isdisjoint(named)
        ):
            return self._checked(request_headers.all)
        return ()

    def _checked(self, headers: Headers) -> Headers:
        """Those that engines get. Raises BadRequest, UnsupportedMediaType for what they say."""
        passed = []
        of_interest = self._of_interest
        for header in headers:
            name, found = header
            if name not in of_interest:
                continue
            if name == b"content-type":
                _check_content_type(found)
            elif name == b"content-encoding":
                if found.strip().lower() not in (b"", b"identity"):
                    raise UnsupportedMediaType("compressed request bodies are not supported")
            elif name == b"x-request-id":
                if self._carries_address(found.decode("latin-1")):
                    raise BadRequest("x-request-id must not carry an address", param="x-request-id")
            else:
                passed.append(header)
        return passed

    def passed_headers(self, headers: Headers) -> tuple[Headers, bytes]:
        """Those that engines get, and the content type, whatever it is; empty for none.

        Raises BadRequest, UnsupportedMediaType.
        """
        content_type = b""
        others = []
        for header in headers:
            if header[0] == b"content-type":
                content_type = header[1]
            else:
                others.append(header)
        return self._checked(others), content_type

    def check_fields(self, fields: Json) -> None:
        """Raises BadRequest for those that are ours to set."""
        if not self.trust_client_kv_params:
            _refuse_ours(fields, self._ours)

    def check_names(self, names: Iterable[str]) -> None:
        """The same for names of which it is not known whether they are fields of a call at all.

        So of those only that nothing else is called.
        """
        if self.trust_client_kv_params:
            return
        for name in names:
            if name in UNMISTAKABLE:
                raise _set_by_us(name)

    def check_id(self, said: object) -> None:
        """Of a field `request_id`, which engines take for their own id of the request where no header says one.

        Raises BadRequest: some dial what it names.
        """
        if isinstance(said, str) and self._carries_address(said):
            raise BadRequest("request_id must not carry an address", param="request_id")

    def _carries_address(self, name: str) -> bool:
        return not self.trust_client_kv_params and request_id.carries_address(name)


def _check_content_type(found: bytes) -> None:
    if found == _JSON:
        return
    media = found.split(b";", 1)[0].strip().lower()
    if media != _JSON and not media.endswith(b"+json"):
        raise UnsupportedMediaType("the content type must be application/json")


def _refuse_ours(fields: Json, ours: frozenset[str], holder: str = "") -> None:
    for name in fields:
        if name in ours or name.startswith(OUR_PREFIXES):
            if value(fields, name) is not None:
                raise _set_by_us(f"{holder}{name}")
        elif name in HOLDERS and not holder:
            held = value(fields, name)
            if isinstance(held, Mapping):
                _refuse_ours(held, ours, f"{name}.")


def _set_by_us(name: str) -> BadRequest:
    return BadRequest(f"{name} is set by the gateway and must not be sent", param=name)
