"""What is configured of KV events is checked before anything starts."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from pdgate.gateway.config import ConfigError, Settings, checks


def test_without_zeromq_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "zmq" else object())

    with pytest.raises(ConfigError, match=r"pip install '\.\[kv-events\]'"):
        checks.check(Settings(kv_events={"endpoint": "ask"}))  # type: ignore[arg-type]

    checks.check(Settings())


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="tcp://host:port"):
        Settings(kv_events={"endpoint": "5557"})  # type: ignore[arg-type]


def test_who_does_not_ask_for_it_needs_no_zeromq() -> None:
    script = (
        "import sys\n"
        "from pdgate.gateway.config import Settings\n"
        "from pdgate.gateway.wiring import build\n"
        "build(Settings())\n"
        "print('zmq' in sys.modules)\n"
    )

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert said.stdout.strip() == "False"
