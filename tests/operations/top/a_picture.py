"""A picture as a gateway draws it, with a bit of everything."""

from typing import Any


def engine(id: str, role: str, **more: Any) -> dict[str, Any]:
    return {
        "id": id, "role": role, "sides": None, "protocol": "vllm-nixl", "url": "http://h:1", "state": "up",
        "models": ["m"], "calls": 3, "answering": 1, "queued_tokens": 123_456, "told_seconds_ago": 0.5,
        "load": {"kv_free": 0.25, "running": 2, "waiting": 1, "step_seconds": 0.02},
        "stranded": 0, "hint": None, "ejections": {}, **more,
    }  # fmt: skip


def call(id: str, phase: str, **more: Any) -> dict[str, Any]:
    over = phase == "over"
    return {
        "id": id, "model": "m", "path": "disaggregated", "phase": phase, "prefill": "p-0", "decode": "d-0",
        "started": 1000.0, "ended": 1001.5 if over else None, "first_byte_ms": 88.0, "kv": over,
        "outcome": "ok" if over else "running", "status": 200 if over else 0, "attempts": 1, **more,
    }  # fmt: skip


def picture(**more: Any) -> dict[str, Any]:
    points = [
        {"at": 700 + 2 * n, "ttft_ms": [80.0, 160.0, 200.0], "itl_ms": [], "ok": 3.0, "gone": 0.0, "failed": 0.5}
        for n in range(150)
    ]  # fmt: skip
    return {
        "at": 1002.0, "version": "0", "ready": True, "missing": [], "draining": False,
        "workers": {"told": 2, "silent": 0},
        "instances": [engine("d-0", "decode"), engine("p-0", "prefill", stranded=2, load=None)],
        "in_flight": 2, "kv": {"held": 1, "stranded": {"p-0": 2}, "strandings": {"p-0": 5}},
        "calls": {
            "running": [call("now", "crossing"), call("soon", "waiting", prefill="", decode="")],
            "ended": [call("before", "over"), call("broken", "over", outcome="engine_failed")],
        },
        "chart": {"slot_seconds": 2, "points": points}, **more,
    }  # fmt: skip
