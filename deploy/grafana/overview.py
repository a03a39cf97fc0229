"""What clients get, and where their time goes."""

from deploy.grafana.panels import (
    OF_JOB,
    OF_MODEL,
    Board,
    Panel,
    PanelLimits,
    PanelRow,
    Query,
    Unit,
    mean,
    number,
    quantile,
    quantiles,
    rate,
    seen_by_any,
)

CALLS = "pdgate_calls_total"
WELL = rate(CALLS, f'{OF_MODEL},outcome="ok"')
STAYED = rate(CALLS, f'{OF_MODEL},outcome!="client_gone"')
EXPECTED = f'{OF_JOB},expected="cached"'
CACHED, PROMPT = f'{OF_MODEL},kind="cached"', f'{OF_MODEL},kind="prompt"'

NOW = PanelRow(
    "Now",
    (
        number(
            "Calls in flight",
            f"sum (pdgate_calls_in_flight{{{OF_JOB}}})",
            "Calls that are being served, of all gateways.",
        ),
        number("Calls", rate(CALLS, OF_MODEL), "Calls that ended.", Unit.PER_SECOND),
        number(
            "Answered well",
            f"{WELL} / {STAYED}",
            "Share of the calls that ended well, of those whose client stayed.",
            Unit.SHARE,
            PanelLimits(0.999, 0.99, low_is_bad=True),
        ),
        number(
            "TTFT p95",
            quantile(0.95, "pdgate_ttft_seconds", OF_MODEL),
            "Of streams, from a call's arrival to the first event that its client got.",
            Unit.SECONDS,
            PanelLimits(2.5, 5),
        ),
        number(
            "TPOT p95",
            quantile(0.95, "pdgate_tpot_seconds", OF_MODEL),
            "Of streams, seconds per token after the first.",
            Unit.SECONDS,
            PanelLimits(0.1, 0.2),
        ),
        number(
            "Engines out",
            f"count (max by (instance) (pdgate_instance_up{{{OF_JOB}}}) == 0) or vector(0)",
            "Engines that no gateway sends calls to.",
            limits=PanelLimits(1, 2),
        ),
    ),
)

CALL_RATES = PanelRow(
    "Calls",
    (
        Panel(
            "Calls by outcome",
            "How calls ended: ok, the client left, or the code of the error that it got.",
            (Query(rate(CALLS, OF_MODEL, "outcome"), "{{outcome}}"),),
            Unit.PER_SECOND,
            stacked=True,
        ),
        Panel(
            "Calls by path",
            "disaggregated: by P and D. local: a D did it all, as was decided. decode_only: a D did "
            "it all, as no P could.",
            (Query(rate(CALLS, OF_MODEL, "path"), "{{path}}"),),
            Unit.PER_SECOND,
            stacked=True,
        ),
        Panel(
            "Calls by model and protocol",
            "Models beyond the 64th are 'other'.",
            (Query(rate(CALLS, OF_MODEL, "model, protocol"), "{{model}} {{protocol}}"),),
            Unit.PER_SECOND,
            stacked=True,
        ),
        Panel(
            "Refused",
            "Requests that were wrong, and calls that were turned away (429) as too many came.",
            (
                Query(rate("pdgate_requests_refused_total", by="status"), "status {{status}}"),
                Query(rate("pdgate_calls_turned_away_total", OF_MODEL, "reason"), "{{reason}}"),
            ),
            Unit.PER_SECOND,
        ),
        Panel(
            "Legs that were tried again",
            "Legs whose attempt failed and was followed by another, by role and error.",
            (
                Query(
                    rate("pdgate_retried_legs_total", by="role, outcome"), "{{role}}: {{outcome}}"
                ),
            ),
            Unit.PER_SECOND,
        ),
        # The first event of a counter is no rate, and these are rare: so they are shown as they are.
        Panel(
            "Answers that broke off, so far",
            "Since the gateways started, after their first byte: resumed at another engine, or lost.",
            (Query(f"sum by (result) (pdgate_broken_answers_total{{{OF_JOB}}})", "{{result}}"),),
        ),
    ),
)

LATENCY = PanelRow(
    "What clients wait for",
    (
        Panel(
            "TTFT",
            "Of streams, from a call's arrival to the first event that its client got.",
            quantiles("pdgate_ttft_seconds", OF_MODEL),
            Unit.SECONDS,
            limits=PanelLimits(2.5, 5),
        ),
        Panel(
            "TPOT",
            "Of streams, seconds per token after the first.",
            quantiles("pdgate_tpot_seconds", OF_MODEL),
            Unit.SECONDS,
        ),
        Panel(
            "Gaps between events (ITL)",
            "Of streams, from one event to the next.",
            quantiles("pdgate_itl_seconds", OF_MODEL),
            Unit.SECONDS,
        ),
        Panel(
            "Whole call",
            "From a call's arrival to the end of its answer, streams or not.",
            quantiles("pdgate_call_seconds", OF_MODEL),
            Unit.SECONDS,
        ),
        Panel(
            "TTFT p95 by model",
            "As above, for each model.",
            (Query(quantile(0.95, "pdgate_ttft_seconds", OF_MODEL, "model"), "{{model}}"),),
            Unit.SECONDS,
            limits=PanelLimits(2.5, 5),
        ),
        Panel(
            "First byte",
            "From a call's arrival to the first byte of its answer, streams or not.",
            quantiles("pdgate_first_byte_seconds", OF_MODEL),
            Unit.SECONDS,
        ),
    ),
)

STAGES = PanelRow(
    "Where the time goes",
    (
        Panel(
            "Stages, mean",
            "What a call spends in each stage: until there is room (queue), choosing engines, reading "
            "the prompt (prefill), until decode has the KV (kv_wait), writing the answer (decode).",
            (Query(mean("pdgate_stage_seconds", OF_MODEL, "stage"), "{{stage}}"),),
            Unit.SECONDS,
            width=12,
        ),
        Panel(
            "Stages, p95",
            "The same for the slowest twentieth.",
            (Query(quantile(0.95, "pdgate_stage_seconds", OF_MODEL, "stage"), "{{stage}}"),),
            Unit.SECONDS,
            width=12,
        ),
    ),
)

TOKENS = PanelRow(
    "Tokens",
    (
        Panel(
            "Tokens",
            "Of prompts, of prompts' parts that engines had cached, and generated, where engines say so.",
            (Query(rate("pdgate_tokens_total", OF_MODEL, "kind"), "{{kind}}"),),
            Unit.TOKENS_PER_SECOND,
        ),
        Panel(
            "Prefix hit rate",
            "Share of prompt tokens that engines had cached: as was expected, where a policy asks, and "
            "as engines say.",
            (
                Query(
                    f"{rate('pdgate_prompt_tokens_total', EXPECTED)}"
                    f" / {rate('pdgate_prompt_tokens_total')}",
                    "expected",
                ),
                Query(
                    f"{rate('pdgate_tokens_total', CACHED)} / {rate('pdgate_tokens_total', PROMPT)}",
                    "as engines say",
                ),
            ),
            Unit.SHARE,
        ),
        Panel(
            "Of each call",
            "Mean tokens of a call that ended well.",
            (
                Query(
                    f"{rate('pdgate_tokens_total', OF_MODEL, 'kind')} / on () group_left () {WELL}",
                    "{{kind}}",
                ),
            ),
        ),
    ),
)

AROUND = PanelRow(
    "What the gateways depend on",
    (
        Panel(
            "Degraded",
            "1 while a directory or Redis does not answer; what was known last is used on.",
            (
                Query(seen_by_any("pdgate_directory_degraded", "job"), "directory"),
                Query(seen_by_any("pdgate_redis_degraded", "job"), "Redis: rules"),
                Query(seen_by_any("pdgate_replicas_degraded", "job"), "Redis: load"),
            ),
            limits=PanelLimits(0.5, 1),
            width=6,
        ),
        Panel(
            "Gateways",
            "Those that answer Prometheus, those that drain, and the other replicas that one sees.",
            (
                Query(f"count (pdgate_calls_in_flight{{{OF_JOB}}})", "answer"),
                Query(f"sum (pdgate_draining{{{OF_JOB}}})", "drain"),
                Query(seen_by_any("pdgate_replicas", "job"), "other replicas"),
            ),
            width=6,
        ),
        Panel(
            "Engines known",
            "By role, and those that a directory gave; entries that cannot be used.",
            (
                Query(
                    f"count by (role) (max by (instance, role) (pdgate_instance_up{{{OF_JOB}}}))",
                    "{{role}}",
                ),
                Query(seen_by_any("pdgate_directory_instances", "job"), "of the directory"),
                Query(seen_by_any("pdgate_directory_unusable", "job"), "unusable entries"),
            ),
            width=6,
        ),
        Panel(
            "Traces",
            "With --otlp-endpoint: calls that were traced, and whether the collector got them.",
            (Query(rate("pdgate_traces_total", by="result"), "{{result}}"),),
            Unit.PER_SECOND,
            width=6,
        ),
    ),
)

BOARD = Board(
    "pdgate-overview",
    "Overview",
    "What clients get, and where their time goes.",
    (NOW, CALL_RATES, LATENCY, STAGES, TOKENS, AROUND),
    choices=(("model", CALLS),),
)
