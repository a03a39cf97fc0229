"""The page on configuration knows every key, and its example is a configuration."""

import tomllib
from pathlib import Path

import pytest

from pdgate.gateway.config import load
from pdgate.gateway.config.complaints import known_keys
from pdgate.gateway.config.settings import Settings
from pdgate.protocols.instance import Role
from tests.docs import configuration
from tests.docs.pages import labelled

pytestmark = pytest.mark.source


def test_the_tables_say_what_the_settings_are() -> None:
    """`python -m tests.docs.configuration` writes them anew."""
    assert configuration.PAGE.read_text(encoding="utf-8") == configuration.page()


def test_no_key_is_left_out() -> None:
    made = configuration.tables()["keys"]
    keys = [key for key in known_keys(Settings) if not key.startswith(configuration.LISTS)]
    sections = {key for key in keys if any(other.startswith(f"{key}.") for other in keys)}

    assert [key for key in keys if f"`{key}`" not in made and key not in sections] == []


def test_the_example_is_accepted_and_means_what_the_page_says(tmp_path: Path) -> None:
    text = labelled(configuration.PAGE, "toml")["pdgate.toml"]
    file = tmp_path / "pdgate.toml"
    file.write_text(text, encoding="utf-8")

    settings = load(file, {})

    assert [instance.role for instance in settings.fleet] == [
        Role.PREFILL, Role.PREFILL, Role.DECODE, Role.PLAIN,
    ]  # fmt: skip
    assert settings.listen.port == tomllib.loads(text)["listen"]["port"]
