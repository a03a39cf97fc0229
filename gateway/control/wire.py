"""Routes by which engines are controlled, in vLLM's words and in SGLang's, and what each does to calls.

    ASK       nothing: all engines are asked
    PAUSE     the model's calls wait until RESUME; those that run end first, or are ended
    START     the same until FINISH: the weights are in parts until then
    UPDATE    calls wait for as long as it takes, and KV of the old weights is forgotten
    SLEEP     calls wait until WAKE has brought all of it back
    FLUSH     KV caches are emptied, ours of them too
    ABORT     calls that run are ended

Source: vLLM 0.32.0 and 0.33.0, entrypoints/rl/online/api_router.py (pause, resume, is_paused, abort_requests,
init_weight_transfer_engine, start_weight_update, update_weights, finish_weight_update, ...),
entrypoints/serve/dev/{sleep,cache,rpc}/api_router.py, with VLLM_SERVER_DEV_MODE alone. SGLang 0.5.23,
srt/entrypoints/http_server.py (flush_cache, update_weights_from_*, {pause,continue}_generation, abort_request,
{release,resume}_memory_occupation, ...), which answers {"success", "message"}, 400 where it failed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final


class Effect(Enum):
    """Effect of a route on calls."""

    ASK = auto()
    PAUSE = auto()
    RESUME = auto()
    START = auto()
    UPDATE = auto()
    FINISH = auto()
    SLEEP = auto()
    WAKE = auto()
    FLUSH = auto()
    ABORT = auto()


MEMORY_TAGS: Final = ("weights", "kv_cache")
"""What sleeps and wakes apart, where a request names tags, and without which no call can be served."""


@dataclass(frozen=True, slots=True)
class ControlRoute:
    """
    Attributes:
        flush: Path at which engines of these words empty their KV caches, tiers included.
        modes: What they may be told to do with calls that run, the default first; none if they are not
            told, and the choice is the gateway's.
        parts: Of an engine's memory, that it is about where a request names none.
    """

    path: str
    effect: Effect
    methods: tuple[str, ...]
    flush: str
    modes: tuple[str, ...] = ()
    parts: tuple[str, ...] = MEMORY_TAGS

    @property
    def in_query(self) -> bool:
        """Whether the mode and tags stand in the query, and not in the body."""
        return self.flush == VLLM_FLUSH


WAIT: Final = "wait"
ABORT: Final = "abort"
MODES: Final = (WAIT, ABORT)
"""Of calls that run before an update: they end first, or are ended."""
FROZEN_MODES: Final = frozenset({"keep", "retract", "in_place"})
"""With which engines keep calls that run, and go on with them later."""

VLLM_FLUSH: Final = "/reset_prefix_cache?reset_external=true"
SGLANG_FLUSH: Final = "/flush_cache"

_POST, _GET, _BOTH = ("POST",), ("GET",), ("GET", "POST")


def _vllm(path: str, effect: Effect, methods: tuple[str, ...] = _POST, *modes: str) -> ControlRoute:
    return ControlRoute(path, effect, methods, VLLM_FLUSH, modes)


def _sglang(
    path: str, effect: Effect, methods: tuple[str, ...] = _POST, *modes: str
) -> ControlRoute:
    return ControlRoute(path, effect, methods, SGLANG_FLUSH, modes)


ROUTES: Final[Sequence[ControlRoute]] = (
    _vllm("/pause", Effect.PAUSE, _POST, ABORT, WAIT, "keep"),
    _vllm("/resume", Effect.RESUME),
    _vllm("/is_paused", Effect.ASK, _GET),
    _vllm("/abort_requests", Effect.ABORT),
    _vllm("/init_weight_transfer_engine", Effect.ASK),
    _vllm("/shutdown_weight_transfer_engine", Effect.ASK),
    _vllm("/start_weight_update", Effect.START),
    _vllm("/start_draft_weight_update", Effect.START),
    _vllm("/update_weights", Effect.UPDATE),
    _vllm("/finish_weight_update", Effect.FINISH),
    _vllm("/update_weight_version", Effect.ASK),
    _vllm("/weight_info", Effect.ASK, _GET),
    _vllm("/weight_checker", Effect.ASK),
    _vllm("/get_world_size", Effect.ASK, _GET),
    _vllm("/collective_rpc", Effect.UPDATE),
    _vllm("/sleep", Effect.SLEEP, _POST, ABORT, WAIT, "keep"),
    ControlRoute("/release_kv_cache_memory", Effect.SLEEP, _POST, VLLM_FLUSH, parts=("kv_cache",)),
    _vllm("/wake_up", Effect.WAKE),
    _vllm("/is_sleeping", Effect.ASK, _GET),
    _vllm("/reset_prefix_cache", Effect.FLUSH),
    _vllm("/reset_mm_cache", Effect.ASK),
    _vllm("/reset_encoder_cache", Effect.ASK),
    _sglang("/pause_generation", Effect.PAUSE, _POST, ABORT, "retract", "in_place"),
    _sglang("/continue_generation", Effect.RESUME),
    _sglang("/abort_request", Effect.ABORT),
    _sglang("/init_weights_update_group", Effect.ASK),
    _sglang("/destroy_weights_update_group", Effect.ASK),
    _sglang("/update_weights_from_disk", Effect.UPDATE),
    _sglang("/update_weights_from_tensor", Effect.UPDATE),
    _sglang("/update_weights_from_distributed", Effect.UPDATE),
    _sglang("/update_weights_from_ipc", Effect.UPDATE),
    _sglang("/get_weights_by_name", Effect.ASK, _BOTH),
    _sglang("/weights_checker", Effect.ASK),
    _sglang("/release_memory_occupation", Effect.SLEEP, _BOTH),
    _sglang("/resume_memory_occupation", Effect.WAKE, _BOTH),
    _sglang("/flush_cache", Effect.FLUSH, _BOTH),
)
"""/update_weight_version and the flush are spelled alike wherever both have them."""

PATHS: Final = frozenset(route.path for route in ROUTES)


def tags_of(route: ControlRoute, query: Mapping[str, Sequence[str]], body: Any) -> tuple[str, ...]:
    """The parts of an engine's memory that a request is about."""
    if route.in_query:
        said: Any = query.get("tags") or ()
    else:
        said = body.get("tags") if isinstance(body, dict) else ()
    if not isinstance(said, list | tuple) or not said:
        return route.parts
    return tuple(tag for tag in MEMORY_TAGS if tag in said)


def mode_of(route: ControlRoute, query: Mapping[str, Sequence[str]], body: Any) -> str:
    """What becomes of calls that run. Raises ValueError for what is no mode."""
    choices = route.modes or MODES
    if not route.modes or route.in_query:
        said: Any = (query.get("mode") or (choices[0],))[0]
    else:
        said = body.get("mode", choices[0]) if isinstance(body, dict) else choices[0]
    if said not in choices:
        raise ValueError(f"mode must be one of {', '.join(choices)}")
    return str(said)


def ids_of(body: Any) -> tuple[str, ...]:
    """The calls that an ABORT names; none of them for all. Raises ValueError."""
    if not isinstance(body, dict) or body.get("abort_all") is True:
        return ()
    said = body.get("request_ids") or body.get("rid") or ()
    ids = (said,) if isinstance(said, str) else said
    if not isinstance(ids, list | tuple) or not all(isinstance(one, str) for one in ids):
        raise ValueError("the ids of calls must be strings")
    if len(ids) > MOST_IDS or any(len(one) > LONGEST_ID for one in ids):
        raise ValueError(f"no more than {MOST_IDS} ids of {LONGEST_ID} characters each")
    return tuple(ids)


MOST_IDS: Final = 256
LONGEST_ID: Final = 256
