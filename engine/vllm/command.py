"""Rules of a start of vLLM with PdgateConnector, by the command line: `vllm serve MODEL --kv-transfer-config '{...}'`.

The connector refuses the same when vLLM has loaded the model; here it is said before. What only the model shows (groups
of KV blocks, their layout) is not looked at. Other connectors are vLLM's to judge.

Source of the flags: vLLM 0.32.0, engine/arg_utils.py.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdgate.engine.vllm import settings
from pdgate.protocols import plugins
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.fleet import Identity

OURS: Final = "PdgateConnector"
MODULE: Final = "pdgate.engine.vllm.connector"
CONTEXT_PARALLEL: Final = (
    ("--prefill-context-parallel-size", "-pcp"),
    ("--decode-context-parallel-size", "-dcp"),
)
DATA_PARALLEL: Final = ("--data-parallel-size", "-dp")
SPLIT: Final = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"))
ON_CPU: Final = "VLLM_CPU_KVCACHE_SPACE"
"""Of vLLM's CPU build alone; without it the engine is taken to have a GPU."""


def why_not(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """`words` follow `vllm serve`; a sentence for each thing that stands against the start."""
    said = _value(words, "--kv-transfer-config")
    if said is None:
        return
    try:
        config = json.loads(said)
    except ValueError as error:
        yield f"--kv-transfer-config is no JSON: {error}"
        return
    if not isinstance(config, dict):
        yield "--kv-transfer-config is no object"
    elif config.get("kv_connector") == OURS:
        yield from _ours(config, words, environment)


def _ours(
    config: Mapping[str, Any], words: Sequence[str], environment: Mapping[str, str]
) -> Iterator[str]:
    if config.get("kv_connector_module_path") != MODULE:
        yield f"vLLM finds {OURS} by kv_connector_module_path {MODULE!r} only"
    if "--enable-sleep-mode" in words:
        yield f"{OURS} does not go with --enable-sleep-mode"
    for names in CONTEXT_PARALLEL:
        if (size := _value(words, *names) or "1") != "1":
            yield f"{OURS} knows no context parallelism: {names[0]} is {size}"
    if "--enable-dbo" in words or (_value(words, "--ubatch-size") or "0") not in ("0", "1"):
        yield f"{OURS} knows no microbatches (--enable-dbo, --ubatch-size)"
    if (nodes := _value(words, "--nnodes", "-n") or "1") != "1":
        yield f"{OURS} knows no workers on several hosts: --nnodes is {nodes}"
    extra = config.get("kv_connector_extra_config", {})
    if not isinstance(extra, dict):
        yield "kv_connector_extra_config is no object"
        return
    try:
        role, port = config.get("kv_role", ""), config.get("kv_port", 14579)
        found = settings.read(role, port, extra, "").extra
        # The last rank's.
        settings.read(role, port + _ranks(words) - 1, extra, "")
        plugins.find(plugins.TRANSFERS, "transfer backend", found.transfer)
        named = (environment.get(name) for name in (fleet.FILE_VARIABLE, fleet.SECRET_VARIABLE))
        if not found.kv_secret_file and not any(named):
            fleet.check_place("the KV side", found.host, Identity())
    except (ValueError, LookupError) as error:
        yield str(error)
        return
    if found.queue and any((_value(words, *names) or "1") != "1" for names in SPLIT):
        yield "kv_connector_extra_config.queue is for engines of one worker"
    if found.transfer == "mooncake" and ON_CPU not in environment:
        yield (
            "mooncake reaches memory of a GPU by rdma alone, and the connector takes none of its "
            "options: take tcp or shm, which stage, or nixl"
        )


def _ranks(words: Sequence[str]) -> int:
    """Data-parallel; what is no number is vLLM's to refuse."""
    said = _value(words, *DATA_PARALLEL) or "1"
    return max(1, int(said)) if said.isdecimal() else 1


def _value(words: Sequence[str], *names: str) -> str | None:
    """Of the last flag of these names, as argparse has it; None without one."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else following
    return found
