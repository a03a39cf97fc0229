"""Metric families of the gateway: what /metrics shows, and how workers' values become one.

A new metric is a declaration here, one increment (`CallStats.counts[families.NAME][labels] += 1`, or
its value where its component is collected, in wiring/metrics.py), and its row in
docs/operations/metrics.md, which a test compares with these.
"""

from typing import Final

from pdgate.gateway.metrics import zero_values
from pdgate.gateway.metrics.family import Counter, Gauge, HistogramFamily, SampleMerge

# Calls

CALLS_IN_FLIGHT: Final = Gauge(
    "pdgate_calls_in_flight", "Calls that are being served.", merge=SampleMerge.SUM
)
CALLS: Final = Counter(
    "pdgate_calls",
    "Calls that ended, by protocol, model, path and outcome.",
    ("protocol", "model", "path", "outcome"),
)
KV_HANDOVER: Final = Counter(
    "pdgate_kv_handover",
    "How split calls fared: whether decode answered with prefill's KV.",
    ("protocol", "result"),
    zeros=zero_values.handovers,
)
BROKEN_ANSWERS: Final = Counter(
    "pdgate_broken_answers",
    "Answers that broke off after their first byte, by whether another engine went on.",
    ("protocol", "result"),
    zeros=zero_values.broken_answers,
)
API_CALLS: Final = Counter(
    "pdgate_api_calls",
    "Calls that ended, by the route that they came by.",
    ("api", "outcome"),
    zeros=zero_values.routes,
)
REQUESTS_REFUSED: Final = Counter(
    "pdgate_requests_refused",
    "Requests that were wrong before any engine was asked.",
    ("status",),
    zeros=zero_values.refusals,
)
RETRIED_LEGS: Final = Counter(
    "pdgate_retried_legs",
    "Legs whose attempt failed and was followed by another.",
    ("role", "outcome"),
    zeros=zero_values.retried_legs,
)
DECISIONS: Final = Counter(
    "pdgate_disaggregation_decisions",
    "Attempts that could have been split, by what was decided and why.",
    ("decision", "reason"),
    zeros=zero_values.decisions,
)
TOKENS: Final = Counter(
    "pdgate_tokens", "Tokens of prompts and answers, as far as engines say it.", ("model", "kind")
)
EVENTS: Final = (REQUESTS_REFUSED, RETRIED_LEGS, DECISIONS)
"""Counted one by one (`CallStats.counts`), and shown with their zero values before the first."""

CALL_SECONDS: Final = HistogramFamily(
    "pdgate_call_seconds",
    "From the call's arrival to the end of its answer.",
    ("protocol", "model"),
)
FIRST_BYTE_SECONDS: Final = HistogramFamily(
    "pdgate_first_byte_seconds",
    "From the call's arrival to the first byte of its answer.",
    ("protocol", "model"),
)
TTFT_SECONDS: Final = HistogramFamily(
    "pdgate_ttft_seconds",
    "From a stream's arrival to its first event at the client.",
    ("protocol", "model"),
)
TPOT_SECONDS: Final = HistogramFamily(
    "pdgate_tpot_seconds", "For one token of a stream, after the first.", ("protocol", "model")
)
ITL_SECONDS: Final = HistogramFamily(
    "pdgate_itl_seconds", "Between two events of a stream, of some streams.", ("protocol", "model")
)
STAGE_SECONDS: Final = HistogramFamily(
    "pdgate_stage_seconds",
    "How long each stage of a call took that came to a good end.",
    ("protocol", "model", "stage"),
)
INSTANCE_STAGE_SECONDS: Final = HistogramFamily(
    "pdgate_instance_stage_seconds",
    "How long legs to an instance took.",
    ("instance", "role", "stage"),
)

# Instances

INSTANCE_UP: Final = Gauge(
    "pdgate_instance_up", "1 if calls may go there.", ("instance", "role"), merge=SampleMerge.MAX
)
INSTANCE_CALLS: Final = Gauge(
    "pdgate_instance_calls",
    "Legs in flight at an instance.",
    ("instance", "role"),
    # Each worker knows of the others' (gateway/sync/workers/).
    merge=SampleMerge.MAX,
)
INSTANCE_STATE: Final = Gauge(
    "pdgate_instance_state",
    "1 for the state that an instance is in.",
    ("instance", "role", "state"),
    merge=SampleMerge.MAX,
)
INSTANCE_EJECTIONS: Final = Counter(
    "pdgate_instance_ejections",
    "How often an instance was taken out.",
    ("instance", "role", "why"),
    zeros=zero_values.ejections,
)
LEGS_GIVEN_UP: Final = Counter(
    "pdgate_legs_given_up",
    "Legs that were ended as their engine does nothing any more.",
    ("instance", "role", "why"),
    zeros=zero_values.given_up,
)

# The process

DRAINING: Final = Gauge(
    "pdgate_draining", "1 while no new calls are taken, before the end.", merge=SampleMerge.MAX
)
RELOADS: Final = Counter(
    "pdgate_reloads", "Configurations that were read again.", ("result",), zeros=zero_values.reloads
)
JOB_RUNNING: Final = Gauge(
    "pdgate_job_running",
    "Workers in which a background job runs; 0 while it waits to be started anew.",
    ("job",),
    merge=SampleMerge.SUM,
)
JOB_RESTARTS: Final = Counter(
    "pdgate_job_restarts", "How often a background job failed and was started anew.", ("job",)
)
LOG_LINES_DROPPED: Final = Counter(
    "pdgate_log_lines_dropped", "Lines of the log that stderr did not take."
)
SLOW_CALLBACKS: Final = Counter(
    "pdgate_slow_callbacks",
    "Callbacks that used more than 50 ms of CPU time, by the function that ran.",
    ("where",),
)
OUT_OF_MEMORY: Final = Counter(
    "pdgate_out_of_memory",
    "Bodies and answers that were refused, and connections that were cut, for want of memory.",
    ("how",),
)
GATEWAY_SHORT: Final = Counter(
    "pdgate_gateway_short", "Connections to engines that this host had no socket for.", ("of",)
)

# KV that is held for decode, and whether it arrives

KV_HELD: Final = Gauge(
    "pdgate_kv_held",
    "Prompts whose KV a prefill engine holds for a decode engine.",
    merge=SampleMerge.SUM,
)
KV_STRANDED: Final = Gauge(
    "pdgate_kv_stranded",
    "Prompts whose KV an engine keeps and no call needs, at most.",
    ("instance",),
    merge=SampleMerge.SUM,
)
KV_STRANDINGS: Final = Counter(
    "pdgate_kv_strandings",
    "Prompts whose KV an engine has kept and no call needed, until its lease was over.",
    ("instance",),
    zeros=zero_values.prefill_instances,
)
PINNED_ENGINE_ID: Final = Gauge(
    "pdgate_pinned_engine_id",
    "1 for prefill engines that came back under their old engine id, and fail since.",
    ("instance",),
    merge=SampleMerge.MAX,
)
# Every worker reads the same engines.
KV_VERIFIED_TOKENS: Final = Counter(
    "pdgate_kv_verified_tokens",
    "Prompt tokens of decode engines, by whether their KV was handed over.",
    ("instance", "result"),
    merge=SampleMerge.MAX,
)
KV_EXPIRED_PROMPTS: Final = Counter(
    "pdgate_kv_expired_prompts",
    "Prompts that a prefill engine kept for a reader who did not come in time.",
    ("instance",),
    merge=SampleMerge.MAX,
)
KV_LATE_READS: Final = Counter(
    "pdgate_kv_late_reads",
    "Reads that ended after the lease: such answers may be wrong.",
    ("instance",),
    merge=SampleMerge.MAX,
)
INSTANCE_MISCONFIGURED: Final = Gauge(
    "pdgate_instance_misconfigured",
    "1 while an engine does not take over KV, or loses it, by the likeliest cause.",
    ("instance", "cause"),
    merge=SampleMerge.MAX,
)
INSTANCE_PAGE_AGE_SECONDS: Final = Gauge(
    "pdgate_instance_page_age_seconds",
    "Since an engine last told its metrics.",
    ("instance",),
    merge=SampleMerge.MAX,
)

# What is expected of engines

POLICY_PASSED_OVER: Final = Counter(
    "pdgate_policy_passed_over",
    "Choices for which no engine met a condition of the policy.",
    ("role", "policy", "condition"),
)
PREDICTION_ERROR: Final = Gauge(
    "pdgate_prediction_error",
    "By how much predicted seconds were off lately, as a share of those seen.",
    ("instance", "of"),
    merge=SampleMerge.MAX,
)
PREDICTION_BIAS: Final = Gauge(
    "pdgate_prediction_bias",
    "By how much they were too long lately (below 0: too short), as a share.",
    ("instance", "of"),
    merge=SampleMerge.MAX,
)
PREDICTIONS: Final = Counter(
    "pdgate_predictions", "Predictions that were compared with what came.", ("instance", "of")
)
PROMPT_TOKENS: Final = Counter(
    "pdgate_prompt_tokens",
    "Of prompts that engines were to read, as it was expected when they were chosen.",
    ("expected",),
)
PREFIX_INDEX_BYTES: Final = Gauge(
    "pdgate_prefix_index_bytes", "Memory of the prefix index.", merge=SampleMerge.SUM
)
PREFIX_INDEX_BLOCKS: Final = Gauge(
    "pdgate_prefix_index_blocks",
    "Blocks of prompts that some engine is believed to have cached.",
    merge=SampleMerge.SUM,
)
PREFIX_INDEX_EVICTED_BLOCKS: Final = Counter(
    "pdgate_prefix_index_evicted_blocks",
    "Blocks of engines that were forgotten, as they or the index could not hold more.",
)

# What engines publish of their KV caches; each worker listens to all of it

KV_EVENT_BLOCKS: Final = Counter(
    "pdgate_kv_event_blocks",
    "KV blocks of which engines said what became of them.",
    ("instance", "rank", "event"),
    merge=SampleMerge.MAX,
)
CALLBACKS: Final = Counter(
    "pdgate_callbacks", "What engines said to this gateway beside their answers.", ("result",)
)
KV_EVENT_TROUBLES: Final = Counter(
    "pdgate_kv_event_troubles",
    "What went wrong in following an engine's KV events.",
    ("instance", "rank", "kind"),
)
KV_EVENT_REPLAYS: Final = Counter(
    "pdgate_kv_event_replays", "Asked of engines.", ("instance", "rank")
)
KV_EVENT_LAG_SECONDS: Final = Gauge(
    "pdgate_kv_event_lag_seconds",
    "From the last batch's being published to its being read here, by both clocks.",
    ("instance", "rank"),
    merge=SampleMerge.MAX,
)
KV_EVENT_CONNECTED: Final = Gauge(
    "pdgate_kv_event_connected",
    "1 where an engine's KV events are listened to, 0 where they should be.",
    ("instance",),
    merge=SampleMerge.MIN,
)
KV_EVENT_CACHED_BLOCKS: Final = Gauge(
    "pdgate_kv_event_cached_blocks",
    "KV blocks that an engine has, by what it said.",
    ("instance", "rank"),
    merge=SampleMerge.MAX,
)
KV_EVENT_TIER_BLOCKS: Final = Gauge(
    "pdgate_kv_event_tier_blocks",
    "KV blocks that an engine has in a tier beyond its pages, by what it said.",
    ("instance", "rank", "tier"),
    merge=SampleMerge.MAX,
)
KV_EVENT_LINKS: Final = Gauge(
    "pdgate_kv_event_links",
    "Token blocks of which it is known where in calls' prompts they lie.",
    merge=SampleMerge.SUM,
)
TOKENIZED_PROMPTS: Final = Counter(
    "pdgate_tokenized_prompts", "Prompts of which engines were to tell the tokens.", ("outcome",)
)
READ_BACKS: Final = Counter(
    "pdgate_kv_read_backs",
    "Turns of which a decode engine's KV was known, by what became of it at the next turn.",
    ("outcome",),
)
READ_BACK_TURNS: Final = Gauge(
    "pdgate_kv_read_back_turns",
    "Turns whose KV a decode engine keeps for a prefill engine.",
    merge=SampleMerge.SUM,
)

# The directory, Redis and other gateways, which every worker sees

DIRECTORY_DEGRADED: Final = Gauge(
    "pdgate_directory_degraded", "1 while the directory does not answer.", merge=SampleMerge.MAX
)
DIRECTORY_INSTANCES: Final = Gauge(
    "pdgate_directory_instances",
    "Engines that the directory gave, those in doubt after an outage included.",
    merge=SampleMerge.MAX,
)
DIRECTORY_UNUSABLE: Final = Gauge(
    "pdgate_directory_unusable",
    "Entries of the directory that cannot be used.",
    merge=SampleMerge.MAX,
)
DIRECTORY_LOSSES: Final = Counter("pdgate_directory_losses", "How often the directory was lost.")
REDIS_DEGRADED: Final = Gauge(
    "pdgate_redis_degraded",
    "1 while the Redis that replicas share does not answer.",
    merge=SampleMerge.MAX,
)
REPLICAS: Final = Gauge(
    "pdgate_replicas", "Other gateways whose load counts here.", merge=SampleMerge.MAX
)
REPLICAS_DEGRADED: Final = Gauge(
    "pdgate_replicas_degraded",
    "1 while replicas cannot tell each other their load.",
    merge=SampleMerge.MAX,
)
REPLICAS_LOSSES: Final = Counter("pdgate_replicas_losses", "How often the replicas were lost.")
REPLICAS_REFUSED: Final = Counter(
    "pdgate_replicas_refused", "Entries of replicas that cannot be used."
)
REPLICA_PROMPTS: Final = Counter(
    "pdgate_replica_prompts",
    "Which prompts went where: told to other gateways, heard of them, or dropped untold.",
    ("happened",),
)
INSTANCE_REPLICA_CALLS: Final = Gauge(
    "pdgate_instance_replica_calls",
    "Legs of other gateways in flight at an instance.",
    ("instance", "role"),
    merge=SampleMerge.MAX,
)

# API keys, admission, adaptive roles, traces

KEY_CALLS: Final = Counter("pdgate_key_calls", "Calls that were let in, by API key.", ("key",))
KEY_CALLS_IN_FLIGHT: Final = Gauge(
    "pdgate_key_calls_in_flight",
    "Calls that are being served, by API key.",
    ("key",),
    merge=SampleMerge.SUM,
)
KEY_CALLS_REFUSED: Final = Counter(
    "pdgate_key_calls_refused",
    "Calls that an API key had no right to, or not yet.",
    ("key", "reason"),
)
KEY_TOKENS: Final = Counter(
    "pdgate_key_tokens",
    "Tokens that calls took, by API key: of prompts, of these cached, and generated.",
    ("key", "kind"),
)
CALLS_WAITING: Final = Gauge(
    "pdgate_calls_waiting",
    "Calls that wait until engines have room.",
    ("model",),
    merge=SampleMerge.SUM,
)
CALLS_TURNED_AWAY: Final = Counter(
    "pdgate_calls_turned_away",
    "Calls that were refused because too many came, by why.",
    ("model", "reason"),
)
CALLS_HELD: Final = Gauge(
    "pdgate_calls_held",
    "Calls that wait while operators change their engines.",
    merge=SampleMerge.SUM,
)
CALLS_HELD_IN_VAIN: Final = Counter(
    "pdgate_calls_held_in_vain", "Calls that were refused because their engines were held too long."
)
CONTROL_REQUESTS: Final = Counter(
    "pdgate_control_requests",
    "Requests for all engines of a model, by what they are for and which engines did it.",
    ("effect", "engines"),
)
CALLS_GAVE_WAY: Final = Counter(
    "pdgate_calls_gave_way",
    "How often running calls ended for more urgent ones, to go on later.",
    ("model", "stage"),
)
# One process serves all batches.
BATCHES: Final = Gauge(
    "pdgate_batches", "Batches that are not finished.", ("status",), merge=SampleMerge.SUM
)
BATCH_LINES: Final = Counter(
    "pdgate_batch_lines", "Lines of batches that have an answer, or an error.", ("outcome",)
)
REALTIME_SESSIONS: Final = Gauge(
    "pdgate_realtime_sessions", "Realtime sessions that are open.", merge=SampleMerge.SUM
)
REALTIME_SESSIONS_ENDED: Final = Counter(
    "pdgate_realtime_sessions_ended", "Realtime sessions by what ended them.", ("outcome",)
)
REALTIME_BYTES: Final = Counter(
    "pdgate_realtime_bytes",
    "Bytes of messages in realtime sessions, by who sent them.",
    ("sender",),
)
# One worker decides, and the others do as it says.
INSTANCE_SIDE: Final = Gauge(
    "pdgate_instance_side",
    "1 for the side that an instance with role both serves.",
    ("instance", "side"),
    merge=SampleMerge.MAX,
)
SIDE_PRESSURE: Final = Gauge(
    "pdgate_side_pressure",
    "How near engines of a side are to what they should not exceed, which is 1.",
    ("model", "side"),
    merge=SampleMerge.MAX,
)
ROLE_CHANGES: Final = Counter(
    "pdgate_role_changes",
    "How often an instance was turned to a side.",
    ("instance", "to"),
    zeros=zero_values.role_changes,
)
ENDPOINT_PICKS: Final = Counter(
    "pdgate_endpoint_picks",
    "Responses to calls that Envoy asked about, by which engine of the list they were from.",
    ("served",),
    zeros=zero_values.picks,
)
TRACES: Final = Counter(
    "pdgate_traces", "Calls that were traced, by what became of it.", ("result",)
)
