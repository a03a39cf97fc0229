"""Time: what a client or an engine can make one callback of the gateway's event loop cost.

CPU time of the thread, which a busy machine does not make longer. The bound is that of
docs/operations/security.md#time; the sizes are the largest that get so far.
"""

from collections.abc import Iterator
from contextlib import suppress

import msgspec
import pytest

from pdgate.forwarders.prompt import several_prompts
from pdgate.gateway.apis import forms, restricted
from pdgate.gateway.apis.passing import PassedRequest, passing
from pdgate.gateway.config import Settings
from pdgate.gateway.engine_metrics.page import parse_in_turns
from pdgate.gateway.engine_metrics.reader import MAX_PAGE_BYTES
from pdgate.gateway.intake import READ_AT_ONCE_BYTES, Intake
from pdgate.gateway.kv_events.events import MOST_BATCH_BLOCKS, MOST_UNKNOWN_EVENTS, MalformedBatch
from pdgate.gateway.kv_events.events import read as read_events
from pdgate.gateway.kv_events.translation import EventTranslation, SeenEventCounts
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.metrics.histogram import Histogram
from pdgate.gateway.metrics.page import page_of
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.addresses import without_addresses
from pdgate.gateway.upstream.exchange import MAX_ERROR_BYTES
from pdgate.protocols import internal, named_events, openai, request_id
from pdgate.protocols.apis import MESSAGES, PASSED, RESPONSES
from pdgate.protocols.call import COMPLETIONS, encode
from pdgate.protocols.dialects import neuron
from pdgate.protocols.errors import EngineFailed, EngineRejected, GatewayError
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.prefix import PrefixIndex
from pdgate.scheduling.prefix.index import hashed
from tests.support.cpu import CALLBACK_SECONDS, cpu_seconds, longest_step

P = Instance("p0", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl", kv="10.0.0.9:5600")


@pytest.mark.parametrize(
    "word",
    ["a", "a.", "1.", "f:", ":", "[", "[:", "http://", "a:1 ", "::1 ", "10.0.0.1 ", "10.0.0.1:1,"],
)
async def test_the_longest_error_of_an_engine(word: str) -> None:
    """160 KB took 177 s."""
    body = (word.encode() * MAX_ERROR_BYTES)[:MAX_ERROR_BYTES]
    error = EngineRejected(400, [], body, at="p0")

    assert await longest_step(lambda: without_addresses(error, [P])) <= CALLBACK_SECONDS


HELD_BYTES = 128 << 10
"""Of an answer, while nothing of it is good yet (forwarders/first_event.py)."""


@pytest.mark.parametrize(
    "piece",
    [
        b'"role""content"',
        b'"delta":{"role"',
        b'"delta":{"role""content":}',
        b"event: error\ndata:",
        b"\n\r",
        b"data: {",
        b'data: {"object"  ',
        b'"finish_reason":   "abort',
    ],
)
@pytest.mark.parametrize("before", [b"", b'data: {"delta": {'])
def test_the_beginning_of_an_answer(before: bytes, piece: bytes) -> None:
    first = before + (piece * HELD_BYTES)[:HELD_BYTES]

    def read() -> None:
        openai.says_nothing_yet(first + b"\n\n")
        openai.raise_stream_error(first, at="d0")
        openai.aborted(first)
        named_events.says_nothing_yet(first)
        internal.without_ours(first)
        for path in (MESSAGES, RESPONSES):
            with pytest.raises(EngineFailed):
                named_events.raise_unless_whole(path, first, at="d0")
        with pytest.raises(EngineFailed):
            openai.raise_unless_whole(first, at="d0")

    assert cpu_seconds(read) <= CALLBACK_SECONDS


@pytest.mark.parametrize("word", ["_", "_[", "_a", "_[:", "_a:", "_addr", ":/", "-", "cmpl-_"])
def test_the_longest_id(word: str) -> None:
    """Of a call, in a field of its body."""
    text = (word * (512 << 10))[: 512 << 10]

    assert cpu_seconds(lambda: request_id.carries_address(text)) <= CALLBACK_SECONDS
    assert cpu_seconds(lambda: neuron.parse(text)) <= CALLBACK_SECONDS


MAX_BODY_BYTES = Settings().max_body_bytes
INTAKE = Intake(MAX_BODY_BYTES)
NO_HEADS = RequestHeaders([])
HOSTILE = {
    "lists": b'{"model":"m","prompt":[%b0]}' % (b"[]," * (MAX_BODY_BYTES // 3 - 20)),
    "numbers": b'{"model":"m","prompt":[%b0]}' % (b"1," * (MAX_BODY_BYTES // 2 - 20)),
    "nests": b'{"model":"m","prompt":[%b0]}' % (b"[[[[]]]]," * (MAX_BODY_BYTES // 9 - 20)),
    "letters": b'{"model":"m","prompt":"%b"}' % ("é".encode() * (MAX_BODY_BYTES // 2 - 20)),
    "escapes": b'{"model":"m","prompt":"%b"}' % (b"\\u0041" * (MAX_BODY_BYTES // 6 - 20)),
    "prompts": b'{"model":"m","prompt":[%b""]}' % (b'"",' * (MAX_BODY_BYTES // 3 - 20)),
    "spaces": b'{"model":"m","prompt":[%b1]}' % (b" " * (MAX_BODY_BYTES - 40)),
    "fields": b"{%b}" % b",".join(b'"%x":1' % n for n in range(MAX_BODY_BYTES // 12)),
    "few fields": b"{%b}" % b",".join(b'"%x":1' % n for n in range(7000)),
    "one NaN": b'{"model":"m","x":NaN,"prompt":[%b0]}' % (b"[]," * (13_000_000 // 3)),
    "a little NaN": b'{"model":"m","x":NaN,"prompt":[%b0]}' % (b"[]," * (80 << 10)),
    "a surrogate": b'{"model":"m","x":"\\ud800","prompt":[%b0]}' % (b"[]," * (80 << 10)),
    "no UTF-8": b'{"model":"m","x":"\xff","prompt":[%b0]}' % (b"[]," * (80 << 10)),
    "long scalars": b'{"model":"m",%b}'
    % b",".join(
        b'"%b":[%b0]' % (name, b"[]," * 5400) for name in (b"n", b"stream", b"echo", b"stop")
    ),
    "a long model": b'{"model":[%b0]}' % (b"[]," * (1 << 20)),
    "holders": b'{"model":"m","extra_body":[%b0]}' % (b"[]," * (1 << 20)),
    "digits": b'{"model":"m","n":%b}' % (b"9" * (MAX_BODY_BYTES - 40)),
    "some digits": b'{"model":"m","n":%b}' % (b"9" * 5000),
}


def read(body: bytes) -> None:
    try:
        call = INTAKE.call(COMPLETIONS, NO_HEADS, body, "x")
        for name in ("n", "stream", "echo", "stop", "best_of"):
            call.value(name)
    except GatewayError:
        return


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_reading_a_body(body: bytes) -> None:
    """The largest that is let in, if it is long; 13 MB with one NaN took 13 s."""
    assert len(body) <= MAX_BODY_BYTES
    assert cpu_seconds(lambda: read(body)) <= CALLBACK_SECONDS


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_follows_from_a_body(body: bytes) -> None:
    """Bodies that are read aside have these on the event loop all the same."""
    try:
        call = INTAKE.call(COMPLETIONS, NO_HEADS, body, "x")
    except GatewayError:
        return

    for work in (lambda: hashed(call), lambda: several_prompts(call), lambda: encode(call.body)):
        assert cpu_seconds(work) <= CALLBACK_SECONDS


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"vllm:num_requests_r\n",
        b'vllm:num_requests_running{engine="0"} 3.0\n',
        b"vllm:num_requests_running 1\n",
        b"vllm:num_requests_running{%b} 1\n" % (b"a" * 1_000_000),
        b"vllm:num_requests_running %b\n" % (b"9" * 100_000),
        b"vllm:num_requests_running{%b} 1" % (b'engine="0"' * (MAX_PAGE_BYTES // 10)),
        b"vllm:prompt_tokens_by_source_total{%b} 1\n" % (b'{source="' * 100),
    ],
)
async def test_the_longest_page_of_an_engines_metrics(line: bytes) -> None:
    """8 MiB took 0.6 s."""
    page = (line * (MAX_PAGE_BYTES // len(line) + 1))[:MAX_PAGE_BYTES]

    assert await longest_step(lambda: parse_in_turns(page, 0)) <= CALLBACK_SECONDS


ROUTE = PassedRequest(PASSED, "POST", "/v1/x")
FORM = b"multipart/form-data; boundary=X"
PART = b'--X\r\ncontent-disposition: form-data; name="a"\r\n\r\n'
PASSING = {
    "JSON": (b"", HOSTILE["lists"][:READ_AT_ONCE_BYTES]),
    "deep JSON": (b"", b'{"model":"m","x":[%b0]}' % (b'{"x":[]},' * (READ_AT_ONCE_BYTES // 9 - 9))),
    "escaped JSON": (b"", b'{"model":"m","x":[%b0]}' % (b'{"\\u0041":[]},' * (36 << 10))),
    "escapes": (b"", b'{"model":"m","x":[%b0]}' % (b'"\\u0041",' * (READ_AT_ONCE_BYTES // 9 - 9))),
    "parts": (FORM, (PART + b"\r\n") * (READ_AT_ONCE_BYTES // (len(PART) + 2))),
    "lines": (FORM, PART + b"\r\n--" * (READ_AT_ONCE_BYTES // 4)),
    "header": (FORM, b"--X\r\n" + b"a" * READ_AT_ONCE_BYTES),
    "pairs": (forms.URL_ENCODED, b"a&" * (READ_AT_ONCE_BYTES // 2)),
    "short pairs": (forms.URL_ENCODED, b"a&" * (forms.MOST_URL_ENCODED_BYTES // 2)),
    "per cent": (forms.URL_ENCODED, b"%41" * (forms.MOST_URL_ENCODED_BYTES // 3)),
}


@pytest.mark.parametrize(("kind", "body"), PASSING.values(), ids=PASSING.keys())
@pytest.mark.parametrize("for_one_model", [False, True])
def test_reading_what_passes(kind: bytes, body: bytes, for_one_model: bool) -> None:
    headers = RequestHeaders([(b"content-type", kind)] if kind else [])

    def pass_on() -> None:
        try:
            if for_one_model:
                restricted.only_model("/v1/x", "", kind, body, str, ())
            else:
                passing(INTAKE, ROUTE, headers, body, "x", ())
        except GatewayError:
            return

    assert cpu_seconds(pass_on) <= CALLBACK_SECONDS


@pytest.mark.parametrize("query", ["a&" * (32 << 10), "%41" * (21 << 10), ";" * (64 << 10)])
def test_the_longest_query(query: str) -> None:
    def pass_on() -> None:
        try:
            restricted.only_model("/v1/x", query, b"", b"", str, ())
        except GatewayError:
            return

    assert cpu_seconds(pass_on) <= CALLBACK_SECONDS


def stored(blocks: int, size: int, first: int = 0) -> dict[str, object]:
    return {
        "type": "BlockStored", "block_hashes": list(range(first, first + blocks)), "parent_block_hash": None,
        "token_ids": [1] * (blocks * size), "block_size": size,
    }  # fmt: skip


KV_EVENTS: dict[str, list[object]] = {
    "blocks of one token": [stored(MOST_BATCH_BLOCKS, 1)],
    "too many blocks": [stored(10 * MOST_BATCH_BLOCKS, 1)],
    "a long block": [stored(1, 900_000)],
    "blocks by themselves": [stored(1, 1, n) for n in range(9000)],
    "removed": [{"type": "BlockRemoved", "block_hashes": list(range(MOST_BATCH_BLOCKS))}],
    "cleared": [{"type": "AllBlocksCleared"}] * 40_000,
    "of no known kind": [{"type": "x"}] * 100_000,
    "a few of no known kind": [{"type": "x"}] * MOST_UNKNOWN_EVENTS,
    "arrays": [["BlockRemoved", [1]]] * 20_000,
    "nothing": [0] * 1_000_000,
}


@pytest.mark.parametrize("events", KV_EVENTS.values(), ids=KV_EVENTS.keys())
def test_a_batch_of_kv_events(events: list[object]) -> None:
    """8 MiB of one took 0.4 s to read, and 500,000 blocks of one token 0.5 s to take."""
    payload = msgspec.msgpack.encode([1.0, events, 0])

    def taken() -> None:
        translation, seen = EventTranslation(PrefixIndex()), SeenEventCounts()
        with suppress(MalformedBatch):
            translation.take("p0", 0, read_events(payload), seen)

    assert cpu_seconds(taken) <= CALLBACK_SECONDS


async def test_a_page_of_metrics_of_many_models() -> None:
    """64 models, the most that are told apart, took 70 ms."""

    def source() -> Iterator[Samples]:
        histogram = Histogram()
        histogram.add([0.5])
        for stage in range(12):
            yield families.CALL_SECONDS.samples(
                ((f"{stage}", f"model-{n}"), histogram) for n in range(64)
            )

    assert await longest_step(lambda: page_of(source())) <= CALLBACK_SECONDS / 2
