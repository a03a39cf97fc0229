"""What an operator writes about an engine becomes its record."""

from typing import Any

import pytest

from pdgate.gateway.config import ConfigError, Settings, load
from pdgate.gateway.config.instances import from_flag
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import Place


def fleet(*flags: str, **keys: Any) -> tuple[Instance, ...]:
    return load(None, {"instances": [from_flag(flag) for flag in flags], **keys}).fleet


def test_a_flag_says_everything_that_a_record_holds() -> None:
    (instance,) = fleet(
        "id=p,role=prefill,url=http://[::1]:80/base/,kv=[::1]:14579,protocol=vllm-mooncake,"
        "model=m/x,generation=c,dp_rank=1,dp_size=2,pair=first,host=h,rack=r,zone=z"
    )

    assert instance == Instance(
        id="p",
        url="http://[::1]:80/base",
        role=Role.PREFILL,
        protocol="vllm-mooncake",
        generation="c",
        model="m/x",
        kv="[::1]:14579",
        dp_rank=1,
        dp_size=2,
        pair="first",
        place=Place("h", "r", "z"),
    )


def test_what_is_left_out_is_filled_in() -> None:
    first, second, plain, named = fleet(
        "role=prefill,url=http://a",
        "role=prefill,url=http://b",
        "role=plain,url=http://c",
        "role=decode,url=http://d,protocol=neuron",
        pdd_protocol="vllm-mooncake",
        mooncake_generation="b",
        neuron_generation="static",
    )

    assert [one.id for one in (first, second, plain, named)] == [
        "prefill-0", "prefill-1", "plain-0", "decode-0",
    ]  # fmt: skip
    assert (first.protocol, first.generation) == ("vllm-mooncake", "b")
    assert (plain.protocol, plain.generation) == ("plain", "")
    assert (named.protocol, named.generation) == ("neuron", "static")


def test_an_engine_is_on_the_host_of_its_url_unless_somebody_says_otherwise() -> None:
    (instance,) = fleet("role=prefill,url=http://[fd00::7]:8000,rack=r")

    assert instance.place == Place("fd00::7", "r")


def test_a_made_up_id_is_never_one_that_was_given() -> None:
    made_up, _ = fleet("role=prefill,url=http://a", "role=prefill,url=http://b,id=prefill-0")

    assert made_up.id == "prefill-1"


def test_one_url_serves_several_ranks_and_roles() -> None:
    flags = [f"role={role},url=http://a,dp_rank={rank},dp_size=2" for role in ("prefill", "decode")
             for rank in (0, 1)]  # fmt: skip

    assert len({instance.id for instance in fleet(*flags)}) == 4


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["role=prefill"], "'instances[0].url' is missing"),
        (["url=http://a"], "'instances[0].role' is missing"),
        (["role=prefil,url=http://a"], "'instances[0].role' should be 'prefill', 'decode'"),
        (["role=decode,url=a:80"], "'a:80' is not a URL like http://host:port"),
        (["role=decode,url=ftp://a"], "'ftp://a' is not a URL like http://host:port"),
        (["role=decode,url=http://u:p@a"], "may have a host, a port and a path only"),
        (["role=decode,url=http://a?b"], "may have a host, a port and a path only"),
        (["role=decode,url=http://a:99999"], "the port of 'http://a:99999' is not a number"),
        (["role=decode,url=http://a:0"], "the port of 'http://a:0' is not a number"),
        (["role=decode,url=http://a,kv=a"], "'a' is not an address like host:port"),
        (["role=decode,url=http://a,kv=http://a:1"], "is not an address like host:port"),
        (["role=decode,url=http://a,dp_rank=x"], "'instances[0].dp_rank' should be a valid"),
        (["role=decode,url=http://a,dp_size=0"], "'instances[0].dp_size' should be greater"),
        (["role=decode,url=http://[::1"], "'instances[0].url'"),
        (["role=decode,url=http://a", "role=decode,url=http://a/"], "several decode instances"),
        (["role=decode,url=http://a,id=x", "role=plain,url=http://a,id=x"], "have the id 'x'"),
        (["role"], "--instance 'role': 'role' is not of the form key=value"),
        (["role=a,role=b"], "'role' is given twice"),
    ],
)
def test_what_is_wrong_with_an_engine_is_named(flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        fleet(*flags)

    assert sentence in str(error.value)


STATIC = "protocol=neuron,generation=static"
TWO_PAIRS = [f"role={role},url=http://{role}{n},{STATIC}" for role in ("prefill", "decode") for n in "ab"]  # fmt: skip


def test_static_pairs_that_could_be_crossed_are_refused() -> None:
    """A call to halves of two pairs waits for KV that never comes."""
    with pytest.raises(ConfigError, match=r"'prefill-0' and 'prefill-1' are both prefill.*'pair'"):
        fleet(*TWO_PAIRS)


@pytest.mark.parametrize("told_apart", ["pair", "model"])
def test_static_pairs_that_are_told_apart_are_served(told_apart: str) -> None:
    named = [f"{flag},{told_apart}={number % 2}" for number, flag in enumerate(TWO_PAIRS)]

    assert len(fleet(*named)) == 4


def test_settings_made_by_hand_are_checked_too() -> None:
    entry = {"role": "decode", "url": "http://a"}

    with pytest.raises(ValueError, match="several decode instances"):
        Settings.model_validate({"instances": [entry, entry]})


def test_each_rank_behind_a_url_is_an_instance() -> None:
    found = fleet(
        "role=decode,url=http://a,dp=2",
        "role=decode,url=http://b,id=mine,dp=2",
        "role=prefill,url=http://a",
    )

    assert [(one.id, one.url, one.dp_rank, one.dp_size) for one in found] == [
        ("decode-0-dp0", "http://a", 0, 2),
        ("decode-0-dp1", "http://a", 1, 2),
        ("mine-dp0", "http://b", 0, 2),
        ("mine-dp1", "http://b", 1, 2),
        ("prefill-0", "http://a", None, 1),
    ]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["role=decode,url=http://a,dp=2,dp_rank=1"], "'dp' stands for all ranks"),
        (["role=decode,url=http://a,dp=2,dp_size=2"], "'dp' stands for all ranks"),
        (["role=decode,url=http://a,dp=2", "role=decode,url=http://a,dp_rank=1"], "have the URL"),
        (
            ["role=decode,url=http://a,dp=2,id=x", "role=decode,url=http://b,id=x-dp1"],
            "the id 'x-dp1'",
        ),
        (["role=decode,url=http://a,dp=0"], "dp"),
        (["role=decode,url=http://a,dp=2000"], "dp"),
        (["role=decode,url=http://a,dp=x"], "dp"),
    ],
)
def test_ranks_that_cannot_be_are_refused(flags: list[str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        fleet(*flags)
