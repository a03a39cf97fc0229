"""For every alert: series that make it fire, and series that come near and must not.

Values are in promtool's notation, one a minute: `0+6x20` is 0, 6, 12, ... 120; `_` is a gap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypedDict

PAGE, TICKET = "page", "ticket"
G: Final = 'job="pdgate",gateway="g0"'
LABELS: Final = {"job": "pdgate"}
OF_G: Final = {**LABELS, "gateway": "g0"}
M: Final = f'{G},protocol="vllm-nixl",model="m",path="disaggregated"'
HAND_OVER: Final = f'pdgate_kv_handover_total{{{G},protocol="vllm-nixl"'
TTFT: Final = f'pdgate_ttft_seconds_bucket{{{G},model="m"'
UP: Final = f"pdgate_instance_up{{{G}"


@dataclass(frozen=True, slots=True)
class Case:
    """
    Attributes:
        fires, quiet: Series -> values.
        labels: Of the alert, beside its severity.
        minute: At which both are looked at.
    """

    alert: str
    severity: str
    fires: Mapping[str, str]
    quiet: Mapping[str, str]
    summary: str
    labels: Mapping[str, str] = field(default_factory=lambda: LABELS)
    minute: int = 20


def hand_overs(result: str, per_minute: int) -> dict[str, str]:
    """Of 60 a minute that went well, and so many that did not."""
    return {
        f'{HAND_OVER},result="done"}}': "0+60x60",
        f'{HAND_OVER},result="{result}"}}': f"0+{per_minute}x60",
    }


def calls(outcome: str, per_minute: int) -> dict[str, str]:
    return {
        f'pdgate_calls_total{{{M},outcome="ok"}}': "0+60x60",
        f'pdgate_calls_total{{{M},outcome="{outcome}"}}': f"0+{per_minute}x60",
    }


def streams(late_per_minute: int, minutes: int = 500) -> dict[str, str]:
    """A hundred a minute."""
    good = f"0+{100 - late_per_minute}x{minutes}"
    return {
        f'{TTFT},le="2.5"}}': good,
        f'{TTFT},le="+Inf"}}': f"0+100x{minutes}",
        f'pdgate_ttft_seconds_count{{{G},model="m"}}': f"0+100x{minutes}",
    }


class Ends(TypedDict):
    fires: Mapping[str, str]
    quiet: Mapping[str, str]


def one(series: str, fires: str, quiet: str) -> Ends:
    """The same series, with other values."""
    return {"fires": {series: fires}, "quiet": {series: quiet}}


def up(prefill: str, decode: str, both: str = "") -> dict[str, str]:
    found = {
        f'{UP},instance="p0",role="prefill"}}': prefill,
        f'{UP},instance="d0",role="decode"}}': decode,
        f'{UP},instance="b0",role="both"}}': both,
        # Another gateway that sees all well must not hide what this one sees.
        'pdgate_instance_up{job="pdgate",gateway="g1",instance="p0",role="prefill"}': "1x60",
        'pdgate_instance_up{job="pdgate",gateway="g1",instance="d0",role="decode"}': "1x60",
    }
    return {series: values for series, values in found.items() if values}


def instance(name: str, **more: str) -> dict[str, str]:
    return {**LABELS, "instance": name, **more}


CASES: Final = (
    Case(
        "PdgateDown",
        PAGE,
        **one('up{job="pdgate",instance="10.0.0.9:8000"}', "1x17 0x10", "1x19 0x10"),
        labels=instance("10.0.0.9:8000"),
        summary="A gateway does not answer Prometheus, or none is scraped.",
    ),
    Case(
        "PdgateDown",
        PAGE,
        fires={'up{job="other"}': "1x30"},
        quiet={'up{job="pdgate"}': "1x30"},
        summary="A gateway does not answer Prometheus, or none is scraped.",
    ),
    Case(
        "PdgateNoInstance",
        PAGE,
        # The directory has emptied: there is no series that says 0.
        fires={
            f'pdgate_calls_in_flight{{{G},instance="10.0.0.9:8000"}}': "0x30",
            f'{UP},instance="p0",role="prefill"}}': "1x3 _x30",
        },
        quiet={
            f'pdgate_calls_in_flight{{{G},instance="10.0.0.9:8000"}}': "0x30",
            f'{UP},instance="e0",role="plain"}}': "1x30",
        },
        labels=OF_G,
        summary="A gateway has no engine that calls may go to.",
    ),
    Case(
        "PdgateNoPrefillInstance",
        PAGE,
        fires=up(prefill="1x5 0x30", decode="1x60"),
        quiet=up(prefill="1x5 0x30", decode="1x60", both="1x60"),
        labels=OF_G,
        summary="Decode engines are up and no prefill engine is.",
    ),
    Case(
        "PdgateNoDecodeInstance",
        PAGE,
        fires=up(prefill="1x60", decode="1x5 _x30"),
        quiet=up(prefill="1x60", decode="1x60"),
        labels=OF_G,
        summary="Prefill engines are up and no decode engine is.",
    ),
    Case(
        "PdgateErrors",
        PAGE,
        fires=calls("engine_failed", 20),
        quiet={**calls("engine_rejected", 20), **calls("gateway_overloaded", 20)},
        labels={**LABELS, "model": "m"},
        summary="25% of the calls for m end with a 5xx.",
    ),
    Case(
        "PdgateErrors",
        PAGE,
        fires=calls("no_instance", 60),
        quiet=calls("client_gone", 60),
        labels={**LABELS, "model": "m"},
        summary="50% of the calls for m end with a 5xx.",
    ),
    Case(
        "PdgateCallBreaksEngines",
        TICKET,
        fires={f'pdgate_calls_total{{{M},outcome="call_breaks_engines"}}': "_x15 1x30"},
        quiet={f'pdgate_calls_total{{{M},outcome="call_breaks_engines"}}': "_x5 1x60"},
        labels={**LABELS, "model": "m"},
        summary="A call for m made two engines fail in the same way.",
    ),
    Case(
        "PdgateAnswersBreakOff",
        PAGE,
        fires={
            **calls("engine_failed", 1),
            f'pdgate_broken_answers_total{{{G},protocol="vllm-nixl",result="lost"}}': "0+3x60",
        },
        quiet={
            **calls("engine_failed", 0),
            f'pdgate_broken_answers_total{{{G},protocol="vllm-nixl",result="resumed"}}': "0+3x60",
        },
        labels={**LABELS, "protocol": "vllm-nixl"},
        summary="4.918% of the answers break off after their first byte.",
    ),
    Case(
        "PdgateTtftBurnsFast",
        PAGE,
        fires=streams(15),
        quiet=streams(14),
        labels={**LABELS, "model": "m"},
        summary="15% of the streams for m begin too late.",
        minute=120,
    ),
    Case(
        "PdgateTtftBurnsSlowly",
        TICKET,
        fires=streams(7),
        quiet=streams(5),
        labels={**LABELS, "model": "m"},
        summary="7% of the streams for m begin too late.",
        minute=400,
    ),
    Case(
        "PdgateWaitingLineFull",
        PAGE,
        **one(f'pdgate_calls_turned_away_total{{{G},model="m",reason="full"}}', "0+6x60", "0+2x60"),
        labels={**LABELS, "model": "m"},
        summary="Calls for m are turned away, 100m a second.",
    ),
    Case(
        "PdgateHandOverFailing",
        PAGE,
        fires=hand_overs("failed", 20),
        quiet=hand_overs("unknown", 20),
        labels={**LABELS, "protocol": "vllm-nixl"},
        summary="25% of the hand-overs of vllm-nixl fail.",
    ),
    Case(
        "PdgateHandOverFailing",
        PAGE,
        fires=hand_overs("expired", 4),
        quiet=hand_overs("expired", 3),
        labels={**LABELS, "protocol": "vllm-nixl"},
        summary="6.25% of the hand-overs of vllm-nixl fail.",
    ),
    Case(
        "PdgatePromptsReadByDecode",
        TICKET,
        fires=hand_overs("recomputed", 20),
        quiet=hand_overs("recomputed", 3),
        labels={**LABELS, "protocol": "vllm-nixl"},
        summary="25% of the prompts that P was to read are read by D.",
    ),
    Case(
        "PdgateKvStranded",
        TICKET,
        **one(f'pdgate_kv_stranded{{{G},instance="p0"}}', "0x5 12x30", "0x5 10x30"),
        labels=instance("p0"),
        summary="p0 keeps the KV of 12 prompts for nobody.",
    ),
    Case(
        "PdgatePinnedEngineId",
        PAGE,
        **one(f'pdgate_pinned_engine_id{{{G},instance="p0"}}', "_x19 1x9", "1x10 _x10"),
        labels=instance("p0"),
        summary="p0 came back under its old engine id; D fail over its KV.",
    ),
    Case(
        "PdgateInstanceMisconfigured",
        TICKET,
        **one(
            f'pdgate_instance_misconfigured{{{G},instance="d0",cause="no_connector"}}',
            "_x5 1x30",
            "_x19 1x9",
        ),
        labels=instance("d0", cause="no_connector"),
        summary="d0 does not take over KV, or loses it: no_connector.",
    ),
    Case(
        "PdgateLateReads",
        PAGE,
        **one(f'pdgate_kv_late_reads_total{{{G},instance="p0"}}', "0x15 1x9", "0x2 1x30"),
        labels=instance("p0"),
        summary="KV of p0 was read after its lease. Answers may be wrong.",
    ),
    Case(
        "PdgateKvExpires",
        TICKET,
        **one(f'pdgate_kv_expired_prompts_total{{{G},instance="p0"}}', "0+2x30", "0x15 1x9"),
        labels=instance("p0"),
        summary="p0 dropped 20 prompts that nobody fetched in time.",
    ),
    Case(
        "PdgateInstanceEjected",
        TICKET,
        **one(
            f'pdgate_instance_state{{{G},instance="d0",role="decode",state="ejected"}}',
            "_x15 1x9",
            "_x10 1 _x20",
        ),
        labels=instance("d0", role="decode", state="ejected"),
        summary="The decode engine d0 is ejected.",
    ),
    Case(
        "PdgateInstanceDown",
        TICKET,
        fires={f'pdgate_instance_state{{{G},instance="p0",role="prefill",state="down"}}': "1x30"},
        quiet={
            f'pdgate_instance_state{{{G},instance="p0",role="prefill",state="drained"}}': "1x30"
        },
        labels=instance("p0", role="prefill"),
        summary="The prefill engine p0 is down.",
    ),
    Case(
        "PdgateInstanceFlapping",
        TICKET,
        **one(
            f'pdgate_instance_ejections_total{{{G},instance="p0",role="prefill",why="refused"}}',
            "0x10 5x30",
            "0x10 2x30",
        ),
        labels=instance("p0", role="prefill"),
        summary="p0 was taken out 5 times in half an hour.",
        minute=40,
    ),
    Case(
        "PdgateDirectoryDegraded",
        TICKET,
        **one(f"pdgate_directory_degraded{{{G}}}", "0x5 1x30", "0x19 1x9"),
        summary="The directory of engines does not answer; what it told last is used.",
    ),
    Case(
        "PdgateDirectoryUnusable",
        TICKET,
        **one(f"pdgate_directory_unusable{{{G}}}", "0x5 2x30", "0x5 2x2 0x30"),
        summary="2 entries of the directory cannot be used.",
    ),
    Case(
        "PdgateRedisDegraded",
        TICKET,
        fires={
            f"pdgate_redis_degraded{{{G}}}": "0x30",
            f"pdgate_replicas_degraded{{{G}}}": "0x5 1x30",
        },
        quiet={f"pdgate_redis_degraded{{{G}}}": "0x30", f"pdgate_replicas_degraded{{{G}}}": "0x30"},
        summary="Redis does not answer; replicas do not know each other's load.",
    ),
    Case(
        "PdgateKvEventsNotHeard",
        TICKET,
        **one(f'pdgate_kv_event_connected{{{G},instance="p0"}}', "0x30", "0x18 1x9"),
        labels=instance("p0"),
        summary="What p0 publishes of its KV cache is not heard.",
    ),
    Case(
        "PdgateKvEventsLost",
        TICKET,
        fires={
            f'pdgate_kv_event_troubles_total{{{G},instance="p0",rank="0",kind="resync"}}': "0+1x30"
        },
        quiet={
            f'pdgate_kv_event_troubles_total{{{G},instance="p0",rank="0",kind="gap"}}': "0+1x30"
        },
        labels=instance("p0"),
        summary="KV events of p0 are lost again and again.",
    ),
    Case(
        "PdgateTracesLost",
        TICKET,
        fires={f'pdgate_traces_total{{{G},result="lost"}}': "0+6x60"},
        quiet={f'pdgate_traces_total{{{G},result="sent"}}': "0+6x60"},
        summary="Traces do not reach their collector, 100m a second.",
    ),
    Case(
        "PdgateReloadRefused",
        TICKET,
        **one(f'pdgate_reloads_total{{{G},result="refused"}}', "_x15 1x9", "1x30"),
        summary="A gateway was told to reload a configuration that it could not take.",
    ),
    Case(
        "PdgateLabelsRenamed",
        TICKET,
        fires={
            'pdgate_instance_state{job="pdgate",instance="10.0.0.9:8000",exported_instance="p0",'
            'role="prefill",state="up"}': "1x30"
        },
        quiet={
            'pdgate_instance_state{job="pdgate",instance="p0",role="prefill",state="up"}': "1x30"
        },
        summary="Prometheus renames the label instance, so that alerts and dashboards see nothing "
        "of engines.",
    ),
)
