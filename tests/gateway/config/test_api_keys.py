"""API keys as operators write them down."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.api_keys import api_keys
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.gateway.security.authenticator import Authenticator

A, B = "a" * 64, "b" * 64


def test_keys_stand_in_the_configuration_or_in_a_file(tmp_path: Path) -> None:
    config, keys = tmp_path / "pdgate.toml", tmp_path / "keys.toml"
    config.write_text(f'[[api_keys]]\nname = "a"\nsha256 = "{A}"\nmax_calls = 3\n')
    keys.write_text(f'[[api_keys]]\nname = "b"\nsha256 = "{B}"\nmodels = ["m"]\n')

    settings = load(config, {"api_keys_file": str(keys)})
    found = api_keys(settings.api_keys, settings.api_keys_file)

    assert [(key.name, key.max_calls, set(key.models)) for key in found] == [
        ("a", 3, set()),
        ("b", None, {"m"}),
    ]


def test_what_the_command_says_opens_the_door(tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["key", "team-a"])
    file = tmp_path / "keys.toml"
    file.write_text(said.stderr)

    (key,) = api_keys((), str(file))

    headers = RequestHeaders([(b"authorization", b"Bearer " + said.stdout.strip().encode())])
    assert Authenticator([key]).key_state(headers).name == "team-a"
    assert said.stdout.strip() not in said.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot read"),
        ("", "is missing"),
        ("api_keys = []", "has no key"),
        ("[[api_keys]]\n", "'api_keys\\[0\\].name' is missing"),
        (f'[[api_keys]]\nname = "a b"\nsha256 = "{A}"', "api_keys\\[0\\].name"),
        (f'[[api_keys]]\nname = "a"\nsha = "{A}"', "nearest known one is 'api_keys\\[0\\].sha256'"),
        ('[[api_keys]]\nname = "a"\nsha256 = "pdg-secret"', "64 hexadecimal digits"),
        (f'[[api_keys]]\nname = "a"\nsha256 = "{A}"\nmax_calls = 0', "max_calls"),
        ("port = 1", "unknown key 'port'"),
        ("[[", "not valid TOML"),
        (f"a = {'[' * 5000}{']' * 5000}", "not valid TOML"),
        (f'[[api_keys]]\nname = "a"\nsha256 = "{A}"\n' * 2, "several have the name 'a'"),
        (
            f'[[api_keys]]\nname = "a"\nsha256 = "{A}"\n[[api_keys]]\nname = "b"\nsha256 = "{A}"\n',
            "several have the sha256",
        ),
    ],
)
def test_a_file_that_would_not_do_ends_the_start(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    file = tmp_path / "keys.toml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(ConfigError, match=complaint) as caught:
        load(None, {"api_keys_file": str(file)})

    assert "pdg-secret" not in str(caught.value)


def test_a_key_written_where_its_hash_belongs_is_not_repeated() -> None:
    entry: dict[str, Any] = {"name": "a", "sha256": "pdg-secret"}

    with pytest.raises(ConfigError) as caught:
        load(None, {"api_keys": [entry]})

    assert "pdg-secret" not in str(caught.value)
