"""Story of what the gateway and the engines say happened, in words.

GET gateway/debug/calls/{x-request-id}    legs, stages (milliseconds), hand-over
GET engine/metrics                        pdgate_engine_kv_loaded_bytes_total (bytes)
"""

import json
import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

KV_BYTES = "pdgate_engine_kv_loaded_bytes_total"
STEPS = "pdgate_engine_steps_total"
DISAGGREGATED, HANDED_OVER = "disaggregated", "handed_over"

_STAGES = {
    "choose": "choosing engines",
    "choose_prefill": "choosing P",
    "prefill": "prefill",
    "choose_decode": "choosing D",
    "decode_first_byte": "until decode's first byte, KV transfer included",
    "decode": "the rest of decode",
    "first_byte": "first byte to the client, in all",
    "total": "the whole call",
}


def counter(metrics: str, name: str) -> int:
    """The sum of a counter over its labels, from a Prometheus text page."""
    samples = re.findall(rf"^{re.escape(name)}(?:\{{[^\n]*\}})? ([^\s]+)", metrics, re.MULTILINE)
    return int(sum(map(float, samples)))


def was_handed_over(call: Mapping[str, Any]) -> bool:
    return bool(call["path"] == DISAGGREGATED and call["kv"] == HANDED_OVER)


def told(call: Mapping[str, Any], kv_bytes: int, worked: Collection[str]) -> list[str]:
    """Which engines served a call, what moved, and how long each stage took.

    `worked` names the engines that computed something meanwhile: where decode itself asks
    prefill, the gateway sees only decode.
    """
    legs = call["attempts"][-1]["legs"] if call["attempts"] else []
    asked = {leg["instance"]: f"{leg['instance']} ({leg['role']})" for leg in legs}
    unseen = [f"{id} (asked by decode)" for id in sorted(worked) if id not in asked]
    # Prefill before decode, whichever leg was opened first.
    served = ", ".join([*unseen, *sorted(asked.values(), reverse=True)])
    moved = f"{kv_bytes:,} bytes" if kv_bytes else "nothing"
    stages = [
        (_STAGES.get(stage, stage), milliseconds)
        for stage, milliseconds in call["stages_ms"].items()
    ]
    width = max((len(stage) for stage, _ in stages), default=0)
    return [
        f"served by  {served}",
        f"protocol   {call['protocol']}, {call['mode']} scheduling, {call['path']}",
        f"KV moved   {moved}",
        *(f"  {stage:{width}}  {milliseconds:9.1f} ms" for stage, milliseconds in stages),
    ]


def curl(base_url: str, model: str, question: str) -> str:
    """A line for a shell that asks the same."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 48,
        "stream": True,
    }
    return (
        f"curl -N {base_url}/v1/chat/completions "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )
