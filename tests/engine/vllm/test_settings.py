import re
from typing import Any

import pytest

from pdgate.engine.vllm.settings import Extra, read


def test_what_is_not_said_has_a_default() -> None:
    settings = read("kv_producer", 28000, {}, "tiny")

    assert (settings.role, settings.kv_port, settings.extra) == ("prefill", 28000, Extra())


def test_who_only_asks_takes_any_port() -> None:
    """P and D of one host have the same kv_port, unless somebody chose."""
    assert read("kv_consumer", 14579, {}, "tiny").kv_port == 0
    assert read("kv_both", 14579, {}, "tiny").kv_port == 14579


def test_whole_seconds_are_seconds() -> None:
    assert read("kv_both", 0, {"lease_seconds": 5}, "tiny").extra.lease_seconds == 5


@pytest.mark.parametrize(
    ("role", "port", "extra", "named"),
    [
        ("both", 0, {}, "kv_role"),
        (None, 0, {}, "kv_role"),
        ("kv_both", 70000, {}, "kv_port"),
        ("kv_both", 0, {"tranfer": "tcp"}, "'tranfer'"),
        ("kv_both", 0, {"transfer": 3}, "extra_config.transfer"),
        ("kv_both", 0, {"lease_seconds": "30"}, "extra_config.lease_seconds"),
        ("kv_both", 0, {"lease_seconds": True}, "extra_config.lease_seconds"),
        ("kv_both", 0, {"lease_seconds": 0}, "extra_config.lease_seconds"),
        ("kv_both", 0, {"mode": "layer-wise"}, "mode must be one of pull, push, layerwise"),
        ("kv_both", 0, {"mover": "thread"}, "mover must be one of process, threads"),
        ("kv_both", 0, {"queue": "kafka://h"}, "extra_config.queue: a queue is redis://"),
        ("kv_producer", 0, {"queue": "redis://h"}, "run `pdgate prefill-worker`"),
    ],
)
def test_what_cannot_work_is_refused_by_name(
    role: Any, port: int, extra: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        read(role, port, extra, "tiny")
