"""Each engine: what the gateway thinks of it, how fast it is, and what it says of itself."""

from deploy.grafana.panels import (
    OF_INSTANCE,
    WINDOW,
    Board,
    Mark,
    Panel,
    PanelKind,
    PanelLimits,
    PanelRow,
    PanelState,
    Query,
    Unit,
    quantile,
    rate,
    seen_by_any,
)

STAGE = "pdgate_instance_stage_seconds"
STATES = (
    PanelState(1, "up", Mark.GOOD),
    PanelState(2, "slow_start", Mark.GOOD),
    PanelState(3, "drained", Mark.MEANT),
    PanelState(4, "asleep", Mark.MEANT),
    PanelState(5, "trial", Mark.DOUBTED),
    PanelState(6, "silent", Mark.DOUBTED),
    PanelState(7, "ejected", Mark.BAD),
    PanelState(8, "down", Mark.BAD),
)
"""From good to bad; a state is a label, and a panel needs a number."""

ANY_STATE = " or ".join(
    f'{each.value} * pdgate_instance_state{{{OF_INSTANCE},state="{each.name}"}}' for each in STATES
)


def stage(name: str) -> str:
    return f'{OF_INSTANCE},stage="{name}"'


def said(metric: str, by: str = "instance") -> str:
    """Query of what Prometheus scrapes from engines; there, an instance is a host and port."""
    return f"sum by ({by}) ({metric})"


def said_rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}[{WINDOW}]))"


HEALTH = PanelRow(
    "Health",
    (
        Panel(
            "State",
            "What the gateways think of each engine; where they differ, the worst.",
            (Query(f"max by (instance) ({ANY_STATE})", "{{instance}}"),),
            kind=PanelKind.STATES,
            states=STATES,
            width=12,
        ),
        Panel(
            "Taken out, so far",
            "How often it was taken out since the gateways started, and why.",
            (
                Query(
                    f"sum by (instance, why) (pdgate_instance_ejections_total{{{OF_INSTANCE}}})",
                    "{{instance}}: {{why}}",
                ),
            ),
            width=12,
        ),
    ),
)

CALLS = PanelRow(
    "What it serves",
    (
        Panel(
            "Legs in flight",
            "Of these gateways; with replicas on other hosts, theirs too are weighed.",
            (Query(f"sum by (instance) (pdgate_instance_calls{{{OF_INSTANCE}}})", "{{instance}}"),),
        ),
        Panel(
            "Legs",
            "Legs that ended well, per second.",
            (
                Query(
                    rate(
                        f"{STAGE}_count", f'{OF_INSTANCE},stage=~"prefill|answer"', "instance, role"
                    ),
                    "{{instance}} {{role}}",
                ),
            ),
            Unit.PER_SECOND,
        ),
        Panel(
            "Prefill, p95",
            "From asking a P to its answer.",
            (Query(quantile(0.95, STAGE, stage("prefill"), "instance"), "{{instance}}"),),
            Unit.SECONDS,
        ),
        Panel(
            "First byte, p95",
            "From asking a D to the first byte of its answer.",
            (Query(quantile(0.95, STAGE, stage("first_byte"), "instance"), "{{instance}}"),),
            Unit.SECONDS,
        ),
        Panel(
            "Answer, p95",
            "From asking a D to the end of its answer.",
            (Query(quantile(0.95, STAGE, stage("answer"), "instance"), "{{instance}}"),),
            Unit.SECONDS,
        ),
        Panel(
            "Expectations off by",
            "By how much what was expected of it was off, as a share of what came.",
            (
                Query(
                    f"avg by (instance, of) (pdgate_prediction_error{{{OF_INSTANCE}}})",
                    "{{instance}} {{of}}",
                ),
            ),
            Unit.SHARE,
        ),
    ),
)

KV = PanelRow(
    "Its KV",
    (
        Panel(
            "KV that came",
            "Prompt tokens of decode whose KV was handed over, per second.",
            (
                Query(
                    rate(
                        "pdgate_kv_verified_tokens_total",
                        f'{OF_INSTANCE},result="verified"',
                        "instance",
                    ),
                    "{{instance}}",
                ),
            ),
            Unit.TOKENS_PER_SECOND,
        ),
        Panel(
            "KV stranded",
            "Prompts whose KV it keeps for nobody, at most.",
            (Query(f"sum by (instance) (pdgate_kv_stranded{{{OF_INSTANCE}}})", "{{instance}}"),),
            limits=PanelLimits(1, 10),
        ),
        Panel(
            "Age of its metrics",
            "Since it last told the gateways its own metrics.",
            (
                Query(
                    seen_by_any("pdgate_instance_page_age_seconds", "instance", OF_INSTANCE),
                    "{{instance}}",
                ),
            ),
            Unit.SECONDS,
            PanelLimits(15, 60),
        ),
    ),
)

SELF = PanelRow(
    "What engines say themselves, where Prometheus scrapes them",
    (
        Panel(
            "Running",
            "Requests in the batch.",
            (Query(said("vllm:num_requests_running"), "{{instance}}"),),
        ),
        Panel(
            "Waiting",
            "Requests that wait for a turn, or for their KV.",
            (Query(said("vllm:num_requests_waiting"), "{{instance}}"),),
        ),
        Panel(
            "KV cache in use",
            "Share of KV blocks, kept ones included.",
            (Query("max by (instance) (vllm:kv_cache_usage_perc)", "{{instance}}"),),
            Unit.SHARE,
            PanelLimits(0.9, 0.97),
        ),
        Panel(
            "Prompt tokens",
            "Read per second.",
            (Query(said_rate("vllm:prompt_tokens_total"), "{{instance}}"),),
            Unit.TOKENS_PER_SECOND,
        ),
        Panel(
            "Generated tokens",
            "Written per second.",
            (Query(said_rate("vllm:generation_tokens_total"), "{{instance}}"),),
            Unit.TOKENS_PER_SECOND,
        ),
        Panel(
            "Preemptions",
            "Requests that lost their blocks and are computed again.",
            (Query(said_rate("vllm:num_preemptions_total"), "{{instance}}"),),
            Unit.PER_SECOND,
        ),
    ),
)

BOARD = Board(
    "pdgate-instances",
    "Per instance",
    "Each engine: what the gateway thinks of it, how fast it is, and what it says of itself.",
    (HEALTH, CALLS, KV, SELF),
    choices=(("instance", "pdgate_instance_up"),),
)
