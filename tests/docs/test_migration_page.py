"""docs/migration.md says what --compat does."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.gateway import server as gateway_server
from pdgate.gateway.cli.compat.vllm_router import POLICIES, SAME
from pdgate.gateway.config import Settings
from tests.docs import migration

pytestmark = pytest.mark.source


def test_the_tables_are_the_code_s() -> None:
    """`python -m tests.docs.migration` writes them anew."""
    text = migration.page()

    assert migration.PAGE.read_text(encoding="utf-8") == text
    for theirs, ours in SAME.items():
        assert f"`{theirs}" in text, theirs
        assert f"`{ours}" in text or f", `{ours}`" in text, ours
    for theirs, ours in POLICIES.items():
        assert re.search(rf"^\|.*`{theirs}`.*\| `{ours}` \|", text, re.MULTILINE), theirs


def test_the_commands_start_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    monkeypatch.setattr(gateway_server, "serve", lambda settings, _: served.append(settings))
    commands = re.findall(r"^    pdgate (serve --compat .+)$", migration.page(), re.MULTILINE)

    for command in commands:
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.output

    assert len(served) == 2
