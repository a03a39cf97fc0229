"""Checks of the doctor: all that it can find, why it hurts, and what cures it.

Sources: vLLM 0.32.0 on the CPU, where "measured" means seen on running engines; else the source of
vLLM 0.32.0, or of SGLang. Cures name the flag.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final


class Grade(StrEnum):
    WRONG = "wrong"
    """Calls fail, wait, are computed twice, or are answered wrongly."""
    BEWARE = "beware"
    """It works for now, or may."""


class CheckWay(StrEnum):
    LOOK = "look"
    """Engines are only asked what they say of themselves."""
    PROBE = "probe"
    """It takes calls of one token, or a connection; --no-probe leaves it out."""
    GATEWAY = "gateway"
    """A running gateway is asked."""
    START = "start"
    """A command line is read (--start); nothing is asked."""


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """
    Attributes:
        id: Stays the same, for programs.
    """

    id: str
    grade: Grade
    way: CheckWay
    finds: str
    why: str
    cure: str


@dataclass(frozen=True, slots=True)
class Finding:
    """
    Attributes:
        instances: Ids of those that it is about.
        found: What was seen there.
    """

    check: DoctorCheck
    instances: tuple[str, ...]
    found: str

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check.id,
            "grade": self.check.grade.value,
            "instances": list(self.instances),
            "found": self.found,
            "why": self.check.why,
            "cure": self.check.cure,
        }


_WRONG, _BEWARE = Grade.WRONG, Grade.BEWARE
_LOOK, _PROBE = CheckWay.LOOK, CheckWay.PROBE

UNREACHABLE: Final = DoctorCheck(
    "unreachable", _WRONG, _LOOK,
    "nothing answers at its URL",
    "it gets no calls",
    "start it; check host and port (`--host 0.0.0.0` for other machines), and firewalls",
)  # fmt: skip
UNHEALTHY: Final = DoctorCheck(
    "unhealthy", _WRONG, _LOOK,
    "`/health` does not answer 200",
    "it gets no calls; vLLM answers 503 for good once its EngineCore has died",
    "read its log and start it again",
)  # fmt: skip
ASKS_FOR_KEY: Final = DoctorCheck(
    "asks_for_key", _WRONG, _LOOK,
    "`/v1/models` answers 401 or 403",
    "health checks fail, so it gets no calls",
    "give the gateway the key of the engine's `--api-key`: `--engine-key-file FILE`",
)  # fmt: skip
NO_MODELS: Final = DoctorCheck(
    "no_models", _WRONG, _LOOK,
    "it does not name its models, or not the one it is configured with",
    "it is not known what it can serve, so it gets no calls",
    "compare the instance's `model` with `--served-model-name` of the engine",
)  # fmt: skip
NO_CONNECTOR: Final = DoctorCheck(
    "no_connector", _WRONG, _LOOK,
    "a vLLM engine of `vllm-nixl` has no counters of NixlConnector in its metrics",
    "prefill keeps nothing and decode fetches nothing; with a connector of another protocol a call may kill it",
    "start it with `--kv-transfer-config '{\"kv_connector\": \"NixlConnector\", ...}'`, or name its `--pdd-protocol`",
)  # fmt: skip
RANKS_UNNAMED: Final = DoctorCheck(
    "ranks_unnamed", _WRONG, _LOOK,
    "a prefill engine of `vllm-kvt` has several data-parallel ranks, which the gateway takes for one",
    "decode asks the first rank for everything: the others do nothing, and in staged mode what they hold is not found",
    "give the instance `dp=N`, with the first rank's `kv`",
)  # fmt: skip
VERSION_UNTESTED: Final = DoctorCheck(
    "version_untested", _BEWARE, _LOOK,
    "its kind or version is not among those that pdgate was tested with",
    "connectors change what they put on the wire between minor versions",
    "try it with the checks that probe, or take a version from the table",
)  # fmt: skip
CLOSES_CONNECTIONS: Final = DoctorCheck(
    "closes_connections", _BEWARE, _LOOK,
    "it closes the connection after an answer",
    "every leg of every call has to connect anew",
    "take out the proxy in front of it, or let that keep connections",
)  # fmt: skip
CLOCK_SKEW: Final = DoctorCheck(
    "clock_skew", _BEWARE, _LOOK,
    "its clock is more than 3 s off this machine's, by its `Date` header",
    "traces and logs of one call do not fit together, and KV that ends at a time of day ends too soon",
    "let NTP set the clocks of all machines",
)  # fmt: skip
PREFIX_CACHING_OFF: Final = DoctorCheck(
    "prefix_caching_off", _BEWARE, _LOOK,
    "an engine that reads prompts does not keep what it has read",
    "beginnings that prompts share are computed again and again, and policies that look for them have nothing",
    "vLLM: leave out `--no-enable-prefix-caching`; SGLang: leave out `--disable-radix-cache`",
)  # fmt: skip
SHOWS_ALL: Final = DoctorCheck(
    "shows_all", _BEWARE, _LOOK,
    "vLLM's development routes are open",
    "whoever reaches the port may put it to sleep, empty its caches or run code in it",
    "start it without `VLLM_SERVER_DEV_MODE=1`",
)  # fmt: skip
LOADS_FAILED: Final = DoctorCheck(
    "loads_failed", _WRONG, _LOOK,
    "its counters show loads of KV that failed, a twentieth of all or more",
    "such calls fail, or decode computes their prompts again",
    "its log says why: often a version, model path or KV dtype unlike prefill's, or an address that it cannot reach",
)  # fmt: skip
KV_PEERS_REFUSED: Final = DoctorCheck(
    "kv_peers_refused", _WRONG, _LOOK,
    "an engine refused peers, or was refused, for want of a proof of the fleet's KV secret",
    "between them no KV goes: calls fail, or decode computes their prompts; or a stranger has come to its ports",
    "the same secret (`--kv-secret-file`) and version of pdgate on all engines; its log and, of `pdgate engine`, the labels "
    "`port` and `why` of the counter say which differs",
)  # fmt: skip
LEASES_EXPIRED: Final = DoctorCheck(
    "leases_expired", _BEWARE, _LOOK,
    "a prefill engine has dropped KV that no decode engine fetched in time, of a hundredth of its calls or more",
    "until then it took up room there; a decode that comes later may read other prompts' KV",
    "more decode engines, fewer calls at once (`--decode-concurrency`), or a longer `kv_lease_duration` with "
    "`--kv-lease-seconds` of the gateway",
)  # fmt: skip
READ_LATE: Final = DoctorCheck(
    "read_late", _WRONG, _LOOK,
    "KV was fetched after prefill had let go of it",
    "the answers were HTTP 200 and may have been wrong tokens (measured)",
    "let nobody but the gateway send calls to this pair, and set `--kv-lease-seconds` to prefill's `kv_lease_duration`",
)  # fmt: skip
NO_PAIR: Final = DoctorCheck(
    "no_pair", _WRONG, _LOOK,
    "there is no engine of the other side that speaks the same",
    "it is never part of a call that is split",
    "add one, or correct `protocol` and `generation` of the instances",
)  # fmt: skip
MODELS_DIFFER: Final = DoctorCheck(
    "models_differ", _WRONG, _LOOK,
    "a model is served on one side only",
    "calls for it are not split, or refused",
    "start both sides with the same `--served-model-name`",
)  # fmt: skip
MODEL_PATHS_DIFFER: Final = DoctorCheck(
    "model_paths_differ", _WRONG, _LOOK,
    "prefill and decode have the same model from different paths",
    "NIXL's handshake compares the string of `--model`, and refuses every load",
    "start both sides with the same `--model` string, or with `enforce_handshake_compat: false`",
)  # fmt: skip
MAX_MODEL_LEN_DIFFERS: Final = DoctorCheck(
    "max_model_len_differs", _BEWARE, _LOOK,
    "prefill and decode take prompts of different lengths",
    "longer ones fail on the side that takes less, with work done for nothing on the other",
    "start both sides with the same `--max-model-len`",
)  # fmt: skip
VERSIONS_DIFFER: Final = DoctorCheck(
    "versions_differ", _WRONG, _LOOK,
    "prefill and decode run different versions or kinds of engines",
    "NIXL's handshake compares the version of vLLM, and refuses every load",
    "run the same version on both sides",
)  # fmt: skip
BLOCK_SIZE_DIFFERS: Final = DoctorCheck(
    "block_size_differs", _WRONG, _LOOK,
    "KV blocks have another size on prefill than on decode",
    "KV cannot be taken over block by block: loads fail, or decode computes prompts again",
    "start both sides with the same `--block-size` (SGLang: `--page-size`; `pdgate engine`: `--block-tokens`)",
)  # fmt: skip
TP_DIFFERS: Final = DoctorCheck(
    "tp_differs", _WRONG, _LOOK,
    "prefill has another tensor-parallel size than decode, in a protocol that cannot cross them (lmdeploy)",
    "the two cannot be joined, so no call is split over them",
    "start both sides with the same `--tp`",
)  # fmt: skip
KV_DTYPE_DIFFERS: Final = DoctorCheck(
    "kv_dtype_differs", _WRONG, _LOOK,
    "KV is stored in another type on prefill than on decode",
    "the handshake is refused, or the bytes mean something else",
    "start both sides with the same `--kv-cache-dtype`",
)  # fmt: skip
LEASE_DIFFERS: Final = DoctorCheck(
    "lease_differs", _WRONG, _LOOK,
    "prefill keeps KV for a shorter time than the gateway believes",
    "a decode that comes in between reads blocks that may be another prompt's: 200 and wrong tokens (measured)",
    "set `--kv-lease-seconds` of the gateway to the engine's `kv_lease_duration`",
)  # fmt: skip
TOKENS_DIFFER: Final = DoctorCheck(
    "tokens_differ", _WRONG, _LOOK,
    "prefill and decode make different tokens of the same text",
    "KV of one prompt is used for another: wrong answers",
    "give both sides the same tokenizer (`--tokenizer`, `--tokenizer-revision`)",
)  # fmt: skip
CHAT_TEMPLATE_DIFFERS: Final = DoctorCheck(
    "chat_template_differs", _WRONG, _LOOK,
    "prefill and decode make different tokens of the same chat, and the same ones of a text",
    "KV of one prompt is used for another: wrong answers",
    "give both sides the same `--chat-template`",
)  # fmt: skip
ROLES_CROSSED: Final = DoctorCheck(
    "roles_crossed", _WRONG, _PROBE,
    "an engine takes part for the other side than it was started for",
    "calls fail; with Mooncake the first one kills the engine (measured)",
    "swap the two in the configuration, or their `kv_role` in `--kv-transfer-config` (SGLang: `--disaggregation-mode`; "
    "`pdgate engine`: `--role`)",
)  # fmt: skip
ENCODERS_APART: Final = DoctorCheck(
    "encoders_apart", _WRONG, _LOOK,
    "an encode engine hands no embeddings over, or one that reads prompts takes none",
    "media are encoded twice: by the encode engine, and again by the one that reads the prompt",
    "start encode engines with `ec_role` `ec_producer` in `--ec-transfer-config`, those that read prompts with `ec_consumer`",
)  # fmt: skip
KEEPS_NO_KV: Final = DoctorCheck(
    "keeps_no_kv", _WRONG, _PROBE,
    "a prefill engine was asked to keep a prompt's KV, and does not say where it is",
    "no call can be split: it runs without a KV connector, or with another one than that of `pdd_protocol`",
    "`--kv-transfer-config '{\"kv_connector\": \"NixlConnector\", \"kv_role\": \"kv_producer\"}'`, or another `--pdd-protocol`",
)  # fmt: skip
BOOTSTRAP_SILENT: Final = DoctorCheck(
    "bootstrap_silent", _WRONG, _LOOK,
    "the bootstrap server of a prefill engine does not answer",
    "decode engines cannot find it; a Mooncake engine that is a consumer, or crossed, has none",
    "check `kv=` of the instance and `VLLM_MOONCAKE_BOOTSTRAP_PORT`, and that its `kv_role` is `kv_producer`",
)  # fmt: skip
PINNED_ENGINE_ID: Final = DoctorCheck(
    "pinned_engine_id", _WRONG, _PROBE,
    "a prefill engine has an engine id that was chosen, or that has survived a restart",
    "when it restarts, decode engines take it for the one before: every call 500 (NIXL), or hangs (Mooncake; "
    "both measured)",
    "take `engine_id` out of its `--kv-transfer-config` (`pdgate engine`: `--engine-id`)",
)  # fmt: skip
ENGINE_ID_SHARED: Final = DoctorCheck(
    "engine_id_shared", _WRONG, _PROBE,
    "several prefill engines have the same engine id",
    "decode engines take one for the other",
    "take `engine_id` out of their `--kv-transfer-config`",
)  # fmt: skip
SIDE_CHANNEL_SHARED: Final = DoctorCheck(
    "side_channel_shared", _WRONG, _PROBE,
    "several prefill engines say that their KV is fetched at the same address",
    "decode engines reach only one of them",
    "give each its own `VLLM_NIXL_SIDE_CHANNEL_PORT`, and `VLLM_NIXL_SIDE_CHANNEL_HOST` of its machine",
)  # fmt: skip
LOOPBACK_ANNOUNCED: Final = DoctorCheck(
    "loopback_announced", _WRONG, _PROBE,
    "a prefill engine on another machine says that its KV is fetched at a loopback or wildcard address",
    "decode engines dial themselves: loads fail, after 5 s each (NIXL)",
    "set `VLLM_NIXL_SIDE_CHANNEL_HOST` (Mooncake: `VLLM_HOST_IP`; `pdgate engine`: `--kv-host`) to its own address",
)  # fmt: skip
SIDE_CHANNEL_CLOSED: Final = DoctorCheck(
    "side_channel_closed", _WRONG, _PROBE,
    "where its KV is fetched, nothing accepts a connection from here",
    "if decode engines cannot either, loads fail; this machine may only be elsewhere than they are",
    "open the port between the engines (`VLLM_NIXL_SIDE_CHANNEL_PORT` 5600, Mooncake and SGLang 8998, and the "
    "workers' own)",
)  # fmt: skip
ANSWERS_NOTHING: Final = DoctorCheck(
    "answers_nothing", _WRONG, _PROBE,
    "a call of one token fails, though the engine says that it is well",
    "so do those of clients",
    "its answer and its log say why",
)  # fmt: skip
HAND_OVER_FAILS: Final = DoctorCheck(
    "hand_over_fails", _WRONG, _PROBE,
    "a decode engine fails a call whose KV prefill has just left for it",
    "every split call of this pair fails, or is tried elsewhere",
    "look at the other findings of the pair, then at the log of decode: handshake (version, model, dtype), address",
)  # fmt: skip
KV_NOT_TAKEN: Final = DoctorCheck(
    "kv_not_taken", _WRONG, _PROBE,
    "a decode engine answers well, and has computed the prompt itself",
    "prompts are computed twice, and nothing in the answers says so",
    "start decode with the connector of `pdd_protocol` and `kv_role: kv_consumer`; see kv-verification.md for causes",
)  # fmt: skip
HASH_SEED_DIFFERS: Final = DoctorCheck(
    "hash_seed_differs", _BEWARE, _PROBE,
    "prefill and decode publish different hashes for the same block",
    "what compares hashes across engines (other routers, KV stores, Llumnix) finds nothing; pdgate reads the tokens",
    "the same `PYTHONHASHSEED` on all engines, with `--prefix-caching-hash-algo sha256_cbor` (`pdgate engine`: "
    "`--prefix-hash-seed`)",
)  # fmt: skip
GATEWAY_SAYS: Final = DoctorCheck(
    "gateway_says", _BEWARE, CheckWay.GATEWAY,
    "the gateway keeps calls from it, or sees that KV does not arrive there",
    "the rest of the fleet does its work",
    "see the cause (kv-verification.md); `pdgate_instance_up` and the gateway's log have its history",
)  # fmt: skip
CANNOT_START: Final = DoctorCheck(
    "cannot_start", _WRONG, CheckWay.START,
    "an engine that is started so ends with an error",
    "a PdgateConnector says so when vLLM has loaded the model, and Kubernetes starts it again and again",
    "change the flags that the sentence names; device-memory.md and vllm-connector.md say what goes together",
)  # fmt: skip

CHECKS: Final[tuple[DoctorCheck, ...]] = tuple(
    found for found in list(globals().values()) if isinstance(found, DoctorCheck)
)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """What is wrong comes first, then as in the table."""
    return sorted(
        findings, key=lambda one: (one.check.grade is not _WRONG, CHECKS.index(one.check))
    )
