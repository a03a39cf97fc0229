"""Whether KV gets from prefill to decode, what is kept for nobody, and what is read twice."""

from deploy.grafana.panels import (
    OF_JOB,
    OF_MODEL,
    WINDOW,
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

HAND_OVER = "pdgate_kv_handover_total"
VERIFIED = "pdgate_kv_verified_tokens_total"
DONE = f'{OF_JOB},result="done"'
KNOWN = f'{OF_JOB},result!="unknown"'
RECOMPUTED = f'{OF_JOB},result="recomputed"'
TOLD = f'{OF_JOB},result!="unverifiable"'
WAIT = f'{OF_MODEL},stage="kv_wait"'

NOW = PanelRow(
    "Now",
    (
        number(
            "Handed over",
            f"{rate(HAND_OVER, DONE)} / {rate(HAND_OVER, KNOWN)}",
            "Share of the calls to be split whose D answered with P's KV.",
            Unit.SHARE,
            PanelLimits(0.99, 0.95, low_is_bad=True),
        ),
        number(
            "KV wait p95",
            quantile(0.95, "pdgate_stage_seconds", WAIT),
            "From the end of prefill to decode's first byte.",
            Unit.SECONDS,
            PanelLimits(1, 5),
        ),
        number(
            "KV held",
            f"sum (pdgate_kv_held{{{OF_JOB}}})",
            "Prompts whose KV a P holds for a D that has not begun yet.",
        ),
        number(
            "KV stranded",
            f"sum (pdgate_kv_stranded{{{OF_JOB}}}) or vector(0)",
            "Prompts whose KV a P keeps for nobody, at most, until its lease is over.",
            limits=PanelLimits(1, 10),
        ),
        number(
            "Misconfigured engines",
            f"count (max by (instance) (pdgate_instance_misconfigured{{{OF_JOB}}}) == 1)"
            f" or vector(0)",
            "Engines that do not take over KV, or lose it.",
            limits=PanelLimits(1, 1),
        ),
        number(
            "Pinned engine ids",
            f"sum (max by (instance) (pdgate_pinned_engine_id{{{OF_JOB}}})) or vector(0)",
            "P that came back under the engine id of before, and over whose KV D fail since.",
            limits=PanelLimits(1, 1),
        ),
    ),
)

CALLS = PanelRow(
    "Hand-overs",
    (
        Panel(
            "Hand-overs by result",
            "done: D answered with P's KV. failed: it did not. recomputed: no P could, D read the "
            "prompt. expired: P might no longer hold it. unknown: the client left, or a 4xx.",
            (Query(rate(HAND_OVER, by="result"), "{{result}}"),),
            Unit.PER_SECOND,
            stacked=True,
        ),
        Panel(
            "Share handed over, by protocol",
            "Of the calls to be split.",
            (
                Query(
                    f"{rate(HAND_OVER, DONE, 'protocol')} / {rate(HAND_OVER, KNOWN, 'protocol')}",
                    "{{protocol}}",
                ),
            ),
            Unit.SHARE,
            PanelLimits(0.99, 0.95, low_is_bad=True),
        ),
        Panel(
            "KV wait",
            "From the end of prefill to decode's first byte: the transfer, and decode's queue.",
            quantiles("pdgate_stage_seconds", WAIT),
            Unit.SECONDS,
            limits=PanelLimits(1, 5),
        ),
    ),
)

KEPT = PanelRow(
    "What prefill engines keep",
    (
        Panel(
            "KV held",
            "Prompts whose KV a P holds for a D that has not begun yet.",
            (Query(f"sum by (job) (pdgate_kv_held{{{OF_JOB}}})", "held"),),
        ),
        Panel(
            "KV stranded, by engine",
            "Prompts whose KV a P keeps for nobody, at most.",
            (Query(f"sum by (instance) (pdgate_kv_stranded{{{OF_JOB}}})", "{{instance}}"),),
            limits=PanelLimits(1, 10),
        ),
        Panel(
            "Strandings, leases, late reads",
            "Prompts whose KV was kept for nobody; prompts whose reader did not come in time; reads "
            "that ended after the lease, whose answers may be wrong.",
            (
                Query(rate("pdgate_kv_strandings_total"), "stranded"),
                Query(rate("pdgate_kv_expired_prompts_total"), "expired"),
                Query(rate("pdgate_kv_late_reads_total"), "read late"),
            ),
            Unit.PER_SECOND,
        ),
    ),
)

ENGINES = PanelRow(
    "What decode engines count",
    (
        Panel(
            "Prompt tokens of decode, by their KV",
            "verified: it came. recomputed: decode computed it a second time. unverifiable: nobody "
            "can tell.",
            (Query(rate(VERIFIED, by="result"), "{{result}}"),),
            Unit.TOKENS_PER_SECOND,
            stacked=True,
            width=12,
        ),
        Panel(
            "Recomputed share, by engine",
            "Of the prompt tokens that can be told. Above 5 % an engine is called misconfigured.",
            (
                Query(
                    f"{rate(VERIFIED, RECOMPUTED, 'instance')}"
                    f" / {rate(VERIFIED, TOLD, 'instance')}",
                    "{{instance}}",
                ),
            ),
            Unit.SHARE,
            PanelLimits(0.02, 0.05),
            width=12,
        ),
        Panel(
            "Misconfigured engines",
            "By the likeliest cause; 1 while it is so.",
            (
                Query(
                    seen_by_any("pdgate_instance_misconfigured", "instance, cause"),
                    "{{instance}}: {{cause}}",
                ),
            ),
            width=12,
        ),
        Panel(
            "Prompt tokens of all engines, by source",
            "What engines say themselves, where Prometheus scrapes them: computed, of their own "
            "cache, or handed over.",
            (
                Query(
                    f"sum by (source) (rate(vllm:prompt_tokens_by_source_total[{WINDOW}]))",
                    "{{source}}",
                ),
            ),
            Unit.TOKENS_PER_SECOND,
            stacked=True,
            width=12,
        ),
    ),
)

PREFIXES = PanelRow(
    "What engines have cached",
    (
        Panel(
            "KV events: cached blocks",
            "With KV events: blocks that engines have, by what they said.",
            (
                Query(
                    f"sum by (instance) (max by (instance, rank) "
                    f"(pdgate_kv_event_cached_blocks{{{OF_JOB}}}))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "KV events: blocks",
            "Blocks of which engines said that they were stored or removed.",
            (Query(rate("pdgate_kv_event_blocks_total", by="event"), "{{event}}"),),
            Unit.PER_SECOND,
        ),
        Panel(
            "KV events: not heard, and troubles",
            "Engines that are to be heard and are not; and what went wrong, per second.",
            (
                Query(
                    f"count (max by (instance) (pdgate_kv_event_connected{{{OF_JOB}}}) == 0)"
                    f" or vector(0)",
                    "engines not heard",
                ),
                Query(rate("pdgate_kv_event_troubles_total", by="kind"), "{{kind}}"),
            ),
        ),
        Panel(
            "KV events: lag",
            "From an event's being published to its being read, by both clocks.",
            (Query(seen_by_any("pdgate_kv_event_lag_seconds", "instance"), "{{instance}}"),),
            Unit.SECONDS,
        ),
        Panel(
            "Prefix index",
            "Memory of what is known to be cached, of all gateways.",
            (Query(f"sum (pdgate_prefix_index_bytes{{{OF_JOB}}})", "bytes"),),
            Unit.BYTES,
        ),
        Panel(
            "Prompts whose tokens were asked for",
            "told, failed (engines do not know /tokenize), given_up (they cannot keep up).",
            (Query(rate("pdgate_tokenized_prompts_total", by="outcome"), "{{outcome}}"),),
            Unit.PER_SECOND,
        ),
    ),
)

BOARD = Board(
    "pdgate-kv-handover",
    "KV hand-over",
    "Whether KV gets from prefill to decode, what is kept for nobody, and what is read twice.",
    (NOW, CALLS, KEPT, ENGINES, PREFIXES),
    choices=(("model", "pdgate_calls_total"),),
)
