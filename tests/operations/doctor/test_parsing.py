"""What engines answer is read as far as it is what was expected."""

import pytest

from pdgate.operations.doctor import parsing
from pdgate.operations.doctor.seen import SeenBootstrap, SeenConnector, SeenEvents
from pdgate.protocols.instance import Role

PAGE = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="False",engine="0"} 1.0
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{le="+Inf"} 9.0
vllm:nixl_xfer_time_seconds_count 9.0
vllm:nixl_xfer_time_seconds_sum 0.1
# TYPE vllm:nixl_num_failed_transfers counter
vllm:nixl_num_failed_transfers_total{engine="0"} 2.0
vllm:nixl_num_failed_transfers_total{engine="1"} 3.0
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{source="local_compute"} 100.0
vllm:prompt_tokens_by_source_total{source="external_kv_transfer"} 64.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e9
"""


def test_a_page_of_metrics() -> None:
    found = parsing.page(PAGE)

    assert (found.block_tokens, found.prefix_caching, found.kv_dtype) == (16, False, "fp8")
    assert (found.taken_tokens, found.started) == (64, 1.7e9)
    assert found.counters == {"loads": 9.0, "loads_failed": 5.0}
    assert (found.any, found.has_nixl) == (True, True)


def test_ranks_are_counted_by_their_caches() -> None:
    line = 'vllm:cache_config_info{block_size="16",engine="%d"} 1.0'
    lines = ["# TYPE vllm:cache_config_info gauge", *(line % rank for rank in (0, 1)), ""]

    assert parsing.page("\n".join(lines)).ranks == {"0", "1"}
    assert not parsing.page("# TYPE a gauge\na 1.0\n").ranks


def test_peers_that_only_hung_up_are_no_refused_ones() -> None:
    name = "pdgate_engine_kv_peers_refused_total"
    counts = [("tcp", "secret", 2), ("hand-over", "version", 1), ("tcp", "broken", 40)]
    lines = [f'{name}{{port="{port}",why="{why}"}} {n}.0' for port, why, n in counts]
    found = parsing.page("\n".join([f"# TYPE {name.removesuffix('_total')} counter", *lines, ""]))

    assert found.counters == {"peers_refused": 3.0}


def test_an_engine_that_does_not_count_by_source_has_not_taken_nothing() -> None:
    found = parsing.page("# TYPE a gauge\na 1.0\n")

    assert (found.taken_tokens, found.any, found.has_nixl) == (None, True, False)


@pytest.mark.parametrize(
    ("role", "meant"),
    [("kv_producer", Role.PREFILL), ("kv_consumer", Role.DECODE), ("kv_both", Role.BOTH)],
)
def test_vllms_development_mode_shows_the_connector(role: str, meant: Role) -> None:
    extra = {"kv_lease_duration": 8}
    config = {"kv_connector": "NixlConnector", "kv_role": role, "engine_id": "e"}
    shown = {"vllm_config": {"kv_transfer_config": {**config, "kv_connector_extra_config": extra}}}

    assert parsing.vllm_connector(shown) == SeenConnector("NixlConnector", meant, "e", 8.0)


def test_it_shows_what_an_engine_is_to_encoders_too() -> None:
    shown = {"vllm_config": {"ec_transfer_config": {"ec_role": "ec_producer"}}}

    assert parsing.vllm_connector(shown) == SeenConnector(embeddings="ec_producer")


def test_without_a_connector_nothing_is_known_of_it() -> None:
    assert parsing.vllm_connector({"vllm_config": {"kv_transfer_config": None}}) == SeenConnector()


def test_sglang_shows_its_arguments() -> None:
    arguments = {"disaggregation_mode": "decode", "page_size": 64, "disable_radix_cache": True}
    found = parsing.sglang_info({**arguments, "kv_cache_dtype": "auto", "version": "0.5.4"})

    assert found == parsing.SglangInfo("0.5.4", Role.DECODE, 64, "auto", False)


def test_a_bootstrap_server_names_engines_and_workers() -> None:
    workers = {"0": {"0": "tcp://10.0.0.1:4001"}, "1": {"0": "tcp://10.0.0.1:4002"}}
    body = {"0": {"engine_id": "e", "worker_addr": workers}}

    found = parsing.bootstrap(body)

    assert found == SeenBootstrap("", ("e",), (("10.0.0.1", 4001), ("10.0.0.1", 4002)))


@pytest.mark.parametrize("body", [{}, None, [], {"0": {"worker_addr": {}}}, {"a": 1}])
def test_what_is_no_bootstrap_server_is_trouble(body: object) -> None:
    assert parsing.bootstrap(body).trouble


@pytest.mark.parametrize(
    ("endpoint", "dialled"),
    [
        ("tcp://*:5557", "tcp://10.0.0.9:5557"),
        ("tcp://0.0.0.0:5557", "tcp://10.0.0.9:5557"),
        ("tcp://10.1.1.1:5557", "tcp://10.1.1.1:5557"),
    ],
)
def test_a_wildcard_is_dialled_at_the_engines_host(endpoint: str, dialled: str) -> None:
    body = {"0": {"endpoint": endpoint, "replay_endpoint": None, "topic": "kv"}}

    assert parsing.events(body, "10.0.0.9") == SeenEvents(dialled, "", "kv")


@pytest.mark.parametrize(
    ("date", "between", "skew"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", (784111777.2, 784111777.3), 0.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", (784111778.9, 784111779.0), -0.9),
        ("Sun, 06 Nov 1994 08:49:37 GMT", (784111767.0, 784111767.5), 9.5),
        ("nonsense", (0.0, 0.0), None),
        (None, (0.0, 0.0), None),
    ],
)
def test_a_clock_is_compared_by_its_date_header(
    date: str | None, between: tuple[float, float], skew: float | None
) -> None:
    found = parsing.skew(date, between)

    assert found == (None if skew is None else pytest.approx(skew, abs=1e-3))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'"{\\"tp_size\\": 2, \\"block_size\\": 64}"', {"tp": 2, "block_tokens": 64}),
        (b'"{\\"tp_size\\": \\"all\\"}"', {}),
        (b'{"tp_size": 2}', {}),
        (b'"no"', {}),
        (b"", {}),
    ],
)
def test_what_lmdeploy_says_of_its_cache(body: bytes, told: dict[str, int]) -> None:
    assert parsing.lmdeploy_info(body) == told
