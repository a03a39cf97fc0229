"""What is configured of KV events is checked before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from pdgate.gateway.config import ConfigError, Settings, checks


def test_without_what_decrypts_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Engines that publish for members alone take it; those that publish for all take nothing."""
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "nacl" else object())
    file = tmp_path / "kv-secret"
    file.write_text("ab" * 32)

    with pytest.raises(ConfigError, match=r"pip install '\.\[kv-events\]'"):
        checks.check(
            Settings(kv_events={"endpoint": "ask", "secret_file": str(file)})  # type: ignore[arg-type]
        )

    checks.check(Settings(kv_events={"endpoint": "ask"}))  # type: ignore[arg-type]


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="tcp://host:port"):
        Settings(kv_events={"endpoint": "5557"})  # type: ignore[arg-type]


def test_who_hears_those_that_publish_for_all_needs_neither_zeromq_nor_what_decrypts() -> None:
    script = (
        "import sys\n"
        "from pdgate.gateway.config import Settings\n"
        "from pdgate.gateway.wiring import build\n"
        "build(Settings(kv_events={'endpoint': 'ask'}))\n"
        "print({'zmq', 'nacl'} & set(sys.modules))\n"
    )

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert said.stdout.strip() == "set()"
