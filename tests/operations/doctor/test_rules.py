"""A fleet in which all is well, and the same with one thing wrong at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pdgate import __version__
from pdgate.operations.doctor import checks
from pdgate.operations.doctor.checks import CHECKS, DoctorCheck, Grade
from pdgate.operations.doctor.rules import findings
from pdgate.operations.doctor.seen import (
    Card,
    Crossing,
    Dial,
    Examined,
    Gatewise,
    Probes,
    SeenBootstrap,
    SeenConnector,
    SeenEngine,
    SeenKept,
)
from pdgate.protocols.instance import Instance, Role

PREFILL = Instance("p", "http://10.0.0.1:8100", Role.PREFILL, "vllm-nixl")
DECODE = Instance("d", "http://10.0.0.2:8200", Role.DECODE, "vllm-nixl")
ENGINE_ID = "0c8b7d9e-51c0-4f5e-9f6a-3f6d0c1f2a3b"
MODEL = {"m": Card("/models/m", 8192)}
PARAMS: dict[str, Any] = {
    "remote_engine_id": ENGINE_ID,
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
}


def seen(instance: Instance, **more: Any) -> SeenEngine:
    told: dict[str, Any] = {
        "cards": {"m": Card("/models/m", 8192)},
        "kind": "vllm",
        "version": "0.32.0+cpu",
        "block_tokens": 16,
        "prefix_caching": True,
        "kv_dtype": "auto",
        "counters": {"loads": 1000.0, "loads_failed": 3.0, "expired": 2.0, "calls": 1000.0},
        "started": 100.0,
        "skew_seconds": 0.4,
        "text_tokens": (1, 2, 3),
        "chat_tokens": (0, 1, 2, 3),
        "connector": SeenConnector("NixlConnector"),
        "has_nixl": True,
    }
    return SeenEngine(instance=instance, **{**told, **more})


def encoded_by(encoder: str, prefill: str) -> Examined:
    """The two with an encode engine, by what each says of its role towards embeddings."""
    encodes = Instance("e", "http://e:1", Role.ENCODE, "plain")
    reads = SeenConnector("NixlConnector", embeddings=prefill)
    return well(
        fleet=[
            seen(PREFILL, connector=reads),
            seen(DECODE),
            seen(encodes, connector=SeenConnector(embeddings=encoder)),
        ]
    )


def probes() -> Probes:
    return Probes(
        kept={"p": SeenKept(PARAMS)},
        crossings=[Crossing("p", "d", "", 400, 384)],
        hashes={"p": (7, 8), "d": (7, 8)},
        dials=[Dial("p", "10.0.0.1", 5600)],
    )


def well(**more: Any) -> Examined:
    told: dict[str, Any] = {
        "fleet": [seen(PREFILL), seen(DECODE)],
        "probes": probes(),
        "before": {PREFILL.url: ("another", 50.0)},
        "gatewise": [Gatewise("p", "up"), Gatewise("d", "up")],
    }
    return Examined(**{**told, **more})


def prefill_is(**more: Any) -> Examined:
    return well(fleet=[seen(PREFILL, **more), seen(DECODE)])


def decode_is(**more: Any) -> Examined:
    return well(fleet=[seen(PREFILL), seen(DECODE, **more)])


def probed(**more: Any) -> Examined:
    return well(probes=replace(probes(), **more))


def kept(**params: Any) -> Examined:
    return probed(kept={"p": SeenKept({**PARAMS, **params})})


def another_prefill(**params: Any) -> Examined:
    other = replace(PREFILL, id="q", url="http://10.0.0.3:8100")
    told = {"remote_engine_id": "f" * 32, "remote_host": "10.0.0.3", **params}
    answers = {"p": SeenKept(PARAMS), "q": SeenKept({**PARAMS, **told})}
    fleet = [seen(PREFILL), seen(other), seen(DECODE)]
    return well(fleet=fleet, probes=replace(probes(), kept=answers))


def mooncake(bootstrap: SeenBootstrap) -> Examined:
    both = [replace(one, protocol="vllm-mooncake") for one in (PREFILL, DECODE)]
    return well(fleet=[seen(both[0], bootstrap=bootstrap), seen(both[1])], probes=Probes())


def of_kvt(ranks: int, **more: Any) -> list[SeenEngine]:
    both = [replace(one, protocol="vllm-kvt") for one in (PREFILL, DECODE)]
    return [seen(replace(both[0], **more), ranks=ranks), seen(both[1], ranks=ranks)]


CASES: list[tuple[DoctorCheck, Callable[[], Examined]]] = [
    (checks.UNREACHABLE, lambda: decode_is(trouble="refused")),
    (checks.UNHEALTHY, lambda: decode_is(health=503)),
    (checks.ASKS_FOR_KEY, lambda: decode_is(models_status=401, cards={})),
    (checks.NO_MODELS, lambda: decode_is(models_status=500, cards={})),
    (checks.NO_MODELS, lambda: well(fleet=[seen(PREFILL), seen(replace(DECODE, model="n"))])),
    (checks.NO_CONNECTOR, lambda: decode_is(has_nixl=False)),
    (checks.RANKS_UNNAMED, lambda: well(fleet=of_kvt(ranks=2), probes=Probes())),
    (checks.VERSION_UNTESTED, lambda: well(fleet=both(version="0.9.1"))),
    (checks.VERSION_UNTESTED, lambda: well(fleet=both(kind="sglang", version="0.5.1"))),
    (checks.CLOSES_CONNECTIONS, lambda: decode_is(closes=True)),
    (checks.CLOCK_SKEW, lambda: decode_is(skew_seconds=-60.0)),
    (checks.PREFIX_CACHING_OFF, lambda: prefill_is(prefix_caching=False)),
    (checks.SHOWS_ALL, lambda: decode_is(shows_all=True)),
    (checks.LOADS_FAILED, lambda: decode_is(counters={"loads": 90.0, "loads_failed": 10.0})),
    (checks.KV_PEERS_REFUSED, lambda: prefill_is(counters={"peers_refused": 2.0})),
    (checks.LEASES_EXPIRED, lambda: prefill_is(counters={"calls": 90.0, "expired": 1.0})),
    (checks.READ_LATE, lambda: prefill_is(counters={"read_late": 1.0})),
    (checks.CANNOT_START, lambda: well(starts={"vllm serve M": ["it does not go"]})),
    (checks.NO_PAIR, lambda: well(fleet=[seen(PREFILL)])),
    (checks.MODELS_DIFFER, lambda: decode_is(cards={**MODEL, "lora": Card()})),
    (checks.MODEL_PATHS_DIFFER, lambda: decode_is(cards={"m": Card("m", 8192)})),
    (checks.MAX_MODEL_LEN_DIFFERS, lambda: decode_is(cards={"m": Card("/models/m", 4096)})),
    (checks.VERSIONS_DIFFER, lambda: decode_is(version="0.32.1")),
    (checks.BLOCK_SIZE_DIFFERS, lambda: decode_is(block_tokens=32)),
    (checks.TP_DIFFERS, lambda: well(fleet=[seen(PREFILL, tp=1), seen(DECODE, tp=2)])),
    (checks.KV_DTYPE_DIFFERS, lambda: decode_is(kv_dtype="fp8")),
    (checks.LEASE_DIFFERS, lambda: prefill_is(connector=SeenConnector(lease_seconds=8.0))),
    (checks.TOKENS_DIFFER, lambda: decode_is(text_tokens=(1, 3, 2), chat_tokens=(1, 3, 2))),
    (checks.CHAT_TEMPLATE_DIFFERS, lambda: decode_is(chat_tokens=(1, 2, 3))),
    (checks.ROLES_CROSSED, lambda: prefill_is(connector=SeenConnector(role=Role.DECODE))),
    (checks.ROLES_CROSSED, lambda: crossed()),
    (checks.ENCODERS_APART, lambda: encoded_by("ec_consumer", "ec_consumer")),
    (checks.ENCODERS_APART, lambda: encoded_by("ec_producer", "")),
    (checks.KEEPS_NO_KV, lambda: probed(kept={"p": SeenKept()}, crossings=[])),
    (checks.BOOTSTRAP_SILENT, lambda: mooncake(SeenBootstrap("refused"))),
    (checks.PINNED_ENGINE_ID, lambda: kept(remote_engine_id="prefill-1")),
    (checks.PINNED_ENGINE_ID, lambda: mooncake(SeenBootstrap("", ("mine",)))),
    (checks.PINNED_ENGINE_ID, lambda: well(before={PREFILL.url: (ENGINE_ID, 50.0)})),
    (checks.ENGINE_ID_SHARED, lambda: another_prefill(remote_engine_id=ENGINE_ID)),
    (checks.SIDE_CHANNEL_SHARED, lambda: another_prefill(remote_host="10.0.0.1")),
    (checks.LOOPBACK_ANNOUNCED, lambda: kept(remote_host="127.0.0.1")),
    (checks.LOOPBACK_ANNOUNCED, lambda: kept(remote_host="localhost")),
    (checks.LOOPBACK_ANNOUNCED, lambda: kept(remote_host="0.0.0.0")),
    (checks.SIDE_CHANNEL_CLOSED, lambda: probed(dials=[Dial("p", "10.0.0.1", 5600, "refused")])),
    (checks.ANSWERS_NOTHING, lambda: probed(silent={"d": "500 Internal Server Error"})),
    (checks.HAND_OVER_FAILS, lambda: probed(crossings=[Crossing("p", "d", "500")])),
    (checks.KV_NOT_TAKEN, lambda: probed(crossings=[Crossing("p", "d", "", 400, 0)])),
    (checks.HASH_SEED_DIFFERS, lambda: probed(hashes={"p": (7,), "d": (9,)})),
    (checks.GATEWAY_SAYS, lambda: well(gatewise=[Gatewise("d", "ejected")])),
    (checks.GATEWAY_SAYS, lambda: well(gatewise=[Gatewise("d", "up", "no_connector", "hint")])),
]  # fmt: skip


def both(**more: Any) -> list[SeenEngine]:
    return [seen(PREFILL, **more), seen(DECODE, **more)]


def crossed() -> Examined:
    refused = SeenKept(trouble="400 this engine's role is decode")
    return probed(kept={"p": refused}, turned={"d": SeenKept(PARAMS)}, crossings=[])


def test_a_fleet_in_order_has_no_findings() -> None:
    assert not findings(well())


def test_neither_has_one_of_which_nothing_is_known() -> None:
    """SGLang without metrics, an old engine: what is not said is not wrong."""
    silent = [SeenEngine(instance=one, cards={"m": Card()}) for one in (PREFILL, DECODE)]

    assert not findings(Examined(silent, Probes(made=False)))


@pytest.mark.parametrize(("check", "fleet"), CASES, ids=[check.id for check, _ in CASES])
def test_each_fault_is_named_and_nothing_else(
    check: DoctorCheck, fleet: Callable[[], Examined]
) -> None:
    found = findings(fleet())

    assert {one.check.id for one in found} == {check.id}
    assert all(one.found and one.instances for one in found)


def test_every_check_can_find_something() -> None:
    assert {check.id for check, _ in CASES} == {check.id for check in CHECKS}
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_what_is_wrong_comes_before_what_to_beware_of() -> None:
    found = findings(decode_is(closes=True, skew_seconds=60.0, block_tokens=32))

    assert [one.check.grade for one in found] == [Grade.WRONG, Grade.BEWARE, Grade.BEWARE]


def test_engines_of_one_machine_may_announce_loopback() -> None:
    here = replace(PREFILL, url="http://127.0.0.1:8100")
    told = replace(probes(), kept={"p": SeenKept({**PARAMS, "remote_host": "127.0.0.1"})})

    assert not findings(well(fleet=[seen(here), seen(DECODE)], probes=told))


def test_an_engine_that_was_not_restarted_may_keep_its_id() -> None:
    assert not findings(well(before={PREFILL.url: (ENGINE_ID, 100.0)}))


def test_other_protocols_are_not_compared() -> None:
    sglang = [replace(one, id=f"{one.id}2", protocol="sglang") for one in (PREFILL, DECODE)]
    fleet = [seen(PREFILL), seen(DECODE), *(seen(one, block_tokens=64) for one in sglang)]

    assert not findings(well(fleet=fleet))


def test_ranks_that_the_gateway_was_told_of_are_well() -> None:
    told = of_kvt(ranks=2, dp_rank=1, dp_size=2)

    assert not findings(well(fleet=told, probes=Probes()))
    assert not findings(well(fleet=of_kvt(ranks=1), probes=Probes()))


def test_an_encode_engine_that_hands_over_is_well() -> None:
    for encoder, prefill in (("ec_producer", "ec_consumer"), ("ec_both", "ec_both")):
        assert not findings(encoded_by(encoder, prefill))


def test_our_own_engines_are_tested() -> None:
    assert not findings(well(fleet=both(kind="pdgate", version=__version__)))
