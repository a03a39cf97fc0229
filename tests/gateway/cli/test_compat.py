"""Another router's command line makes a gateway that does the same."""

import shlex

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.gateway import server as gateway_server
from pdgate.gateway.cli.compat import NotTaken, translation, vllm_router
from pdgate.gateway.config import Settings
from pdgate.protocols.instance import Role


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    found: list[Settings] = []
    monkeypatch.setattr(gateway_server, "serve", lambda settings, _: found.append(settings))
    return found


def run(line: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["serve", *shlex.split(line)])
    return result.exit_code, result.output


def engines(settings: Settings) -> list[tuple[Role, str, str]]:
    return [(one.role, one.url, one.kv) for one in settings.fleet]


def test_vllm_router_with_nixl(served: list[Settings]) -> None:
    """The example of its own help, and most flags that a start script has."""
    code, said = run(
        "--compat vllm-router --vllm-pd-disaggregation"
        " --prefill http://p1:8000 9000 --prefill http://p2:8000 none"
        " --decode http://d1:8001 --decode http://d2:8001"
        " --policy cache_aware --decode-policy power_of_two --host 0.0.0.0"
        " --request-timeout-secs 900 --retry-max-retries 5 --cb-failure-threshold 10"
        " --health-check-interval-secs 30 --cors-allowed-origins https://a.example https://b.example"
        " --prometheus-port 29000 --log-level critical"
    )

    assert code == 0, said
    (settings,) = served
    assert settings.pdd_protocol == "vllm-nixl"
    assert engines(settings) == [
        (Role.PREFILL, "http://p1:8000", ""),
        (Role.PREFILL, "http://p2:8000", ""),
        (Role.DECODE, "http://d1:8001", ""),
        (Role.DECODE, "http://d2:8001", ""),
    ]
    assert (settings.prefill_policy, settings.decode_policy) == ("prefix_then_load", "random_two")
    assert (settings.listen.host, settings.listen.port) == ("0.0.0.0", 30000)
    assert settings.timeouts.total_seconds == 900
    assert settings.max_attempts == 5
    assert (settings.health.max_failures, settings.health.interval_seconds) == (10, 30)
    assert settings.cors_origins == "https://a.example,https://b.example"
    assert settings.log_level == "error"
    # What is otherwise here is said, and so is what could be written instead.
    assert "--prometheus-port: /metrics is at the port of calls" in said
    assert "the same is pdgate serve --pdd-protocol vllm-nixl --prefill http://p1:8000" in said


def test_vllm_router_with_mooncake_knows_where_prefill_is_asked(served: list[Settings]) -> None:
    code, said = run(
        "--compat=vllm-router --vllm-pd-disaggregation --kv-connector mooncake"
        " --prefill http://p1:8000 8998 --prefill http://[fd00::1]:8000 8999 --decode http://d1:8001"
    )

    assert code == 0, said
    assert served[0].pdd_protocol == "vllm-mooncake"
    assert engines(served[0])[:2] == [
        (Role.PREFILL, "http://p1:8000", "p1:8998"),
        (Role.PREFILL, "http://[fd00::1]:8000", "[fd00::1]:8999"),
    ]


def test_vllm_router_in_front_of_whole_engines(served: list[Settings]) -> None:
    code, said = run("--compat vllm-router --worker-urls http://w1:8000 http://w2:8000 --port 8080")

    assert code == 0, said
    assert [role for role, *_ in engines(served[0])] == [Role.PLAIN, Role.PLAIN]
    assert served[0].listen.port == 8080


def test_ranks_behind_one_url_are_engines_of_their_own(served: list[Settings]) -> None:
    code, said = run(
        "--compat vllm-router --prefill http://p:8000 --decode http://d:8000"
        " --intra-node-data-parallel-size 2"
    )

    assert code == 0, said
    assert [(one.role, one.dp_rank) for one in served[0].fleet] == [
        (Role.PREFILL, 0),
        (Role.PREFILL, 1),
        (Role.DECODE, 0),
        (Role.DECODE, 1),
    ]


def test_a_queue_is_said_to_need_what_calls_wait_for(served: list[Settings]) -> None:
    code, said = run("--compat vllm-router --worker-urls http://w1:8000 --queue-size 10")

    assert code == 0, said
    assert served[0].admission.waiting == 10
    assert "--queue-size: calls wait for room or a target: --decode-concurrency" in said


def test_our_own_flags_go_along(served: list[Settings]) -> None:
    code, said = run("--call-log --compat vllm-router --worker-urls http://w1:8000 --workers 2")

    assert code == 0, said
    assert served[0].call_log
    assert served[0].listen.workers == 2


def test_the_toy_proxy(served: list[Settings]) -> None:
    code, said = run(
        "--compat vllm-toy-proxy --port 8192 --prefiller-hosts a b --prefiller-ports 8100 8101"
        " --decoder-hosts c --decoder-ports 8200"
    )

    assert code == 0, said
    assert [url for _, url, _ in engines(served[0])] == [
        "http://a:8100",
        "http://b:8101",
        "http://c:8200",
    ]
    assert served[0].listen.port == 8192


def test_the_toy_proxy_as_it_comes(served: list[Settings]) -> None:
    code, said = run("--compat vllm-toy-proxy")

    assert code == 0, said
    assert [url for _, url, _ in engines(served[0])] == [
        "http://localhost:8100",
        "http://localhost:8200",
    ]
    assert (served[0].listen.host, served[0].listen.port) == ("localhost", 8000)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--compat vllm-ruter", "did you mean vllm-router?"),
        ("--compat", "--compat needs a name"),
        ("--compat vllm-router --api-key secret", "--engine-key-file FILE"),
        ("--compat vllm-router --kv-connector moriio", "no protocol speaks it"),
        ("--compat vllm-router --wasm-middleware x.wasm", "would go unchecked"),
        ("--compat vllm-router --prefill-selector app=p", "pdgate.dev/role=prefill"),
        ("--compat vllm-router --policy best", "no policy 'best'"),
        ("--compat vllm-router --health-check-endpoint /up", "/health is asked"),
        ("--compat vllm-router --cb-failure-threshold x", "is no number"),
        ("--compat vllm-router --worker-urls http://w:1 --worker-url x", "--worker-url"),
        ("--compat vllm-toy-proxy --prefiller-hosts a b", "2 --prefiller-hosts and 1"),
    ],
)
def test_what_cannot_be_taken_over_is_said(line: str, why: str, served: list[Settings]) -> None:
    code, said = run(line)

    assert code == 2
    # A box, with line breaks, where Typer says it.
    assert why in said or why in " ".join(said.replace("│", " ").split())
    assert "Traceback" not in said
    assert "secret" not in said
    assert served == []


def test_no_flag_is_two_things() -> None:
    tables = (
        vllm_router.SAME,
        vllm_router.NEEDLESS,
        vllm_router.OTHERWISE,
        vllm_router.REFUSED,
    )
    names = [name for table in tables for name in table]

    assert len(names) == len(set(names))


def test_without_it_nothing_is_translated() -> None:
    assert translation(["--prefill", "http://p:8000", "9000"]) is None
    with pytest.raises(NotTaken, match="needs a name"):
        translation(["--compat"])


def test_every_flag_of_vllm_router_is_known() -> None:
    """Of 0.1.17, as `vllm-router --help` lists them."""
    listed = """
        --host --port --worker-urls --enable-program-scheduling --program-scheduling-config-json
        --policy --prefill-policy --decode-policy --router-temperature --kv-penalty-host
        --kv-penalty-external --kv-penalty-disk --kv-aware-session-affinity-ttl-secs
        --kv-event-source --kv-event-replay-source --kv-event-block-size --kv-event-model
        --pd-kv-events --mini-lb --vllm-pd-disaggregation --prefill --decode
        --worker-startup-timeout-secs --worker-startup-check-interval --cache-threshold
        --balance-abs-threshold --balance-rel-threshold --eviction-interval-secs --max-tree-size
        --max-payload-size --wasm-middleware --wasm-middleware-sha256 --wasm-middleware-route
        --intra-node-data-parallel-size --enable-igw --api-key --log-dir --log-level
        --service-discovery --selector --service-discovery-port --service-discovery-namespace
        --prefill-selector --decode-selector --vllm-discovery-address --kv-connector
        --prometheus-port --prometheus-host --request-id-headers --request-timeout-secs
        --retry-max-retries --retry-initial-backoff-ms --retry-max-backoff-ms
        --retry-backoff-multiplier --retry-jitter-factor --disable-retries --cb-failure-threshold
        --cb-success-threshold --cb-timeout-duration-secs --cb-window-duration-secs
        --disable-circuit-breaker --health-failure-threshold --health-success-threshold
        --health-check-timeout-secs --health-check-interval-secs --health-check-endpoint
        --max-concurrent-requests --queue-size --queue-timeout-secs --rate-limit-tokens-per-second
        --cors-allowed-origins
    """

    assert set(listed.split()) == {
        option for action in vllm_router.flags()._actions for option in action.option_strings
    }
