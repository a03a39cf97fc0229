import pytest

from pdgate.forwarders.base import Leg
from pdgate.gateway.upstream.pool import UrlTarget
from pdgate.gateway.upstream.settings import FORWARDED
from pdgate.protocols.call import Call, Headers
from pdgate.protocols.instance import Instance, Role


def head(
    url: str = "http://p0:8000",
    path: str = "/v1/completions",
    *,
    client: Headers = (),
    own: dict[str, str] | None = None,
    dp_rank: int | None = None,
    request_id: str = "",
) -> list[bytes]:
    instance = Instance("p0", url, Role.PREFILL, "vllm-nixl", dp_rank=dp_rank)
    leg = Leg(instance, path, {}, own or {}, request_id)
    call = Call("id", "attempt", path, {}, client)
    whole = UrlTarget(url).head(leg, call, 17, FORWARDED)
    assert whole.endswith(b"\r\n\r\n")
    return whole[:-4].split(b"\r\n")


def test_a_head_says_what_an_engine_needs() -> None:
    assert head() == [
        b"POST /v1/completions HTTP/1.1",
        b"host: p0:8000",
        b"content-type: application/json",
        b"x-request-id: attempt",
        b"content-length: 17",
    ]


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://p0", b"POST /v1/completions HTTP/1.1", b"host: p0"),
        ("http://[::1]:8000", b"POST /v1/completions HTTP/1.1", b"host: [::1]:8000"),
        ("https://p0", b"POST /v1/completions HTTP/1.1", b"host: p0"),
        ("https://p0:80", b"POST /v1/completions HTTP/1.1", b"host: p0:80"),
        ("http://p0:1/base/", b"POST /base/v1/completions HTTP/1.1", b"host: p0:1"),
    ],
)
def test_host_and_path_come_from_the_url(url: str, line: bytes, host: bytes) -> None:
    assert head(url)[:2] == [line, host]


@pytest.mark.parametrize(
    "url", ["p0:8000", "ftp://p0", "http://", "http://p0:port", "http://p0:0x1"]
)
def test_what_is_no_url_is_an_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"not an http|[Pp]ort"):
        UrlTarget(url)


def test_a_leg_may_have_its_own_request_id() -> None:
    assert b"x-request-id: ___prefill_addr_1" in head(request_id="___prefill_addr_1")


def test_of_the_clients_headers_only_known_ones_pass() -> None:
    client = [
        (b"host", b"gateway"),
        (b"cookie", b"secret"),
        (b"content-length", b"5"),
        (b"x-request-id", b"mine"),
        (b"authorization", b"Bearer k"),
        (b"traceparent", b"00-1-2-01"),
    ]

    assert head(client=client)[5:] == [b"authorization: Bearer k", b"traceparent: 00-1-2-01"]


@pytest.mark.parametrize("value", [b"a\r\nx: 1", b"a\nx: 1", b"a\rb", b"a\0b", b"\r\n"])
def test_a_clients_header_cannot_bring_lines_of_its_own(value: bytes) -> None:
    assert len(head(client=[(b"authorization", value), (b"x-priority", b"1")])) == 6


@pytest.mark.parametrize("value", ["a\r\nx: 1", "a\nx: 1", "a\rb", "a\0b", "\r\n"])
def test_nothing_of_a_leg_can_bring_lines_of_its_own(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        head(own={"x-a": value})
    with pytest.raises(ValueError, match="line break"):
        head(request_id=value)
    with pytest.raises(ValueError, match="not a path"):
        head(path="/v1" + value)


@pytest.mark.parametrize("name", ["a b", "a:", "", "a\r\nb", "Content-Length", "transfer-encoding"])
def test_a_leg_cannot_set_what_frames_the_message(name: str) -> None:
    with pytest.raises(ValueError, match="cannot set"):
        head(own={name: "1"})


def test_a_space_in_a_path_cannot_end_the_request_line() -> None:
    with pytest.raises(ValueError, match="not a path"):
        head(path="/v1 HTTP/1.1")


def test_the_rank_of_the_instance_beats_the_clients() -> None:
    client = [(b"x-data-parallel-rank", b"9")]

    assert head(client=client, dp_rank=2)[5:] == [b"x-data-parallel-rank: 2"]
    assert head(client=client)[5:] == [b"x-data-parallel-rank: 9"]


def test_a_legs_header_beats_everyone() -> None:
    client = [(b"authorization", b"client")]
    own = {"Authorization": "engine", "X-Data-Parallel-Rank": "3"}

    lines = head(client=client, own=own, dp_rank=1)

    assert lines[5:] == [b"authorization: engine", b"x-data-parallel-rank: 3"]


def test_an_own_key_is_said_once_whoever_else_says_one() -> None:
    target = UrlTarget("http://p0", "Bearer ours")
    instance = Instance("p0", "http://p0", Role.PREFILL, "vllm-nixl")
    client = ((b"authorization", b"Bearer client"), (b"x-session-id", b"s"))
    leg = Leg(instance, "/v1", {}, {"Authorization": "Bearer leg", "x-a": "1"})

    for call_headers, asked, more in (
        ((), Leg(instance, "/v1", {}), []),
        (client, leg, [b"x-a: 1", b"x-session-id: s"]),
    ):
        call = Call("id", "attempt", "/", {}, headers=call_headers)
        written = target.head(asked, call, 0, FORWARDED).removesuffix(b"\r\n\r\n").split(b"\r\n")

        assert [line for line in written if b"authorization" in line] == [
            b"authorization: Bearer ours"
        ]
        assert [
            line for line in written if line.startswith(b"x-") and b"request" not in line
        ] == more


@pytest.mark.parametrize("value", ["a\r\nx: 1", "a\n", "a\0b", "\r"])
def test_an_own_key_cannot_bring_lines_of_its_own(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        UrlTarget("http://p0", value)


def test_remembered_paths_have_a_limit() -> None:
    target = UrlTarget("http://p0")
    call = Call("id", "attempt", "/", {})
    instance = Instance("p0", "http://p0", Role.PREFILL, "vllm-nixl")
    for number in range(1000):
        written = target.head(Leg(instance, f"/{number}", {}), call, 0, FORWARDED)
        assert written.startswith(b"POST /%d HTTP" % number)

    assert len(target._known) <= 64
