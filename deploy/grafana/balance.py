"""Whether prefill and decode engines are in proportion, and what keeps calls waiting."""

from deploy.grafana.panels import (
    OF_JOB,
    OF_MODEL,
    Board,
    Panel,
    PanelLimits,
    PanelRow,
    Query,
    Unit,
    number,
    quantile,
    quantiles,
    rate,
    seen_by_any,
)

LEGS = f"sum by (role) (pdgate_instance_calls{{{OF_JOB}}})"
UP = f"sum by (role) (max by (instance, role) (pdgate_instance_up{{{OF_JOB}}}))"
STAGE = "pdgate_stage_seconds"


def stage(name: str) -> str:
    return f'{OF_MODEL},stage="{name}"'


def one_side(role: str) -> str:
    return f'{OF_JOB},role=~"{role}|both"'


NOW = PanelRow(
    "Now",
    (
        number(
            "Prefill engines",
            f"sum (max by (instance) (pdgate_instance_up{{{one_side('prefill')}}}))",
            "Those that calls may go to, with role prefill or both.",
            limits=PanelLimits(2, 1, low_is_bad=True),
        ),
        number(
            "Decode engines",
            f"sum (max by (instance) (pdgate_instance_up{{{one_side('decode')}}}))",
            "Those that calls may go to, with role decode or both.",
            limits=PanelLimits(2, 1, low_is_bad=True),
        ),
        number(
            "Prefill p95",
            quantile(0.95, STAGE, stage("prefill")),
            "From asking P to its answer.",
            Unit.SECONDS,
        ),
        number(
            "Decode's first byte p95",
            quantile(0.95, STAGE, stage("decode_first_byte")),
            "From asking D to the first byte of its answer.",
            Unit.SECONDS,
        ),
        number(
            "Calls that wait",
            f"sum (pdgate_calls_waiting{{{OF_MODEL}}})",
            "With limits: until engines have room.",
            limits=PanelLimits(1, 100),
        ),
        number(
            "Turned away",
            rate("pdgate_calls_turned_away_total", OF_MODEL),
            "With limits: calls that got 429.",
            Unit.PER_SECOND,
            PanelLimits(0.01, 1),
        ),
    ),
)

LOAD = PanelRow(
    "Load of the two sides",
    (
        Panel(
            "Engines that take calls",
            "By role, those that calls may go to.",
            (Query(UP, "{{role}}"),),
        ),
        Panel(
            "Legs in flight",
            "By role, over all engines.",
            (Query(LEGS, "{{role}}"),),
        ),
        Panel(
            "Legs in flight per engine",
            "If one side's is high and the other's low, engines are in the wrong proportion.",
            (Query(f"{LEGS} / ({UP} > 0)", "{{role}}"),),
        ),
        Panel(
            "Prompts and answers",
            "Tokens that the prefill side reads and that the decode side writes.",
            (
                Query(
                    rate("pdgate_tokens_total", f'{OF_MODEL},kind=~"prompt|generated"', "kind"),
                    "{{kind}}",
                ),
            ),
            Unit.TOKENS_PER_SECOND,
        ),
        Panel(
            "Busy legs",
            "Seconds of prefill and of decode per second: how many legs run at once, on average.",
            (
                Query(
                    rate(f"{STAGE}_sum", f'{OF_MODEL},stage=~"prefill|decode"', "stage"),
                    "{{stage}}",
                ),
            ),
        ),
        Panel(
            "Which side makes clients wait, p95",
            "The parts of TTFT: for room, for P to read the prompt, for D to take the KV over and begin.",
            (
                Query(
                    quantile(
                        0.95,
                        STAGE,
                        f'{OF_MODEL},stage=~"queue|prefill|kv_wait|decode_first_byte"',
                        "stage",
                    ),
                    "{{stage}}",
                ),
            ),
            Unit.SECONDS,
        ),
    ),
)

SIDES = PanelRow(
    "Each side",
    (
        Panel(
            "Prefill",
            "From asking P to its answer.",
            quantiles(STAGE, stage("prefill")),
            Unit.SECONDS,
        ),
        Panel(
            "Decode's first byte",
            "From asking D to the first byte of its answer.",
            quantiles(STAGE, stage("decode_first_byte")),
            Unit.SECONDS,
        ),
        Panel(
            "Decode",
            "From asking D to the end of its answer.",
            quantiles(STAGE, stage("decode")),
            Unit.SECONDS,
        ),
    ),
)

QUEUE = PanelRow(
    "Waiting",
    (
        Panel(
            "Wait for room",
            "With limits: until an engine had room for the call.",
            quantiles(STAGE, stage("queue")),
            Unit.SECONDS,
        ),
        Panel(
            "Waiting calls by model",
            "With limits.",
            (Query(f"sum by (model) (pdgate_calls_waiting{{{OF_MODEL}}})", "{{model}}"),),
        ),
        Panel(
            "Turned away by reason",
            "full: the line was full. hopeless: it would have waited too long. too_long: it did. "
            "gave_way: to a more urgent call. late: its prompt would be read too late.",
            (Query(rate("pdgate_calls_turned_away_total", OF_MODEL, "reason"), "{{reason}}"),),
            Unit.PER_SECOND,
        ),
    ),
)

DECISIONS = PanelRow(
    "What is split, and roles",
    (
        Panel(
            "Split or whole",
            "Attempts that could have been split, by what was decided and why.",
            (
                Query(
                    rate("pdgate_disaggregation_decisions_total", by="decision, reason"),
                    "{{decision}}: {{reason}}",
                ),
            ),
            Unit.PER_SECOND,
            stacked=True,
            width=12,
        ),
        Panel(
            "Pressure",
            "With --adaptive: how near a side is to what it should not exceed, which is 1.",
            (Query(seen_by_any("pdgate_side_pressure", "model, side"), "{{model}} {{side}}"),),
            limits=PanelLimits(0.8, 1),
            width=12,
        ),
        Panel(
            "Sides of engines with role both",
            "With --adaptive: how many serve each side.",
            (
                Query(
                    f"sum by (side) (max by (instance, side) (pdgate_instance_side{{{OF_JOB}}}))",
                    "{{side}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "How right expectations are",
            "By how much what was expected of engines was off, as a share of what came; the mean.",
            (
                Query(f"avg by (of) (pdgate_prediction_error{{{OF_JOB}}})", "{{of}}: off by"),
                Query(f"avg by (of) (pdgate_prediction_bias{{{OF_JOB}}})", "{{of}}: too long by"),
            ),
            Unit.SHARE,
            width=12,
        ),
    ),
)

BOARD = Board(
    "pdgate-balance",
    "PD balance",
    "Whether prefill and decode engines are in proportion, and what keeps calls waiting.",
    (NOW, LOAD, SIDES, QUEUE, DECISIONS),
    choices=(("model", "pdgate_calls_total"),),
)
