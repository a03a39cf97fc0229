"""Loading of a configuration: a TOML file and flags become one checked tree."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pdgate.cluster import regular
from pdgate.gateway.config.complaints import ConfigError, complaints
from pdgate.gateway.config.settings import Settings

TOO_DEEP = "the configuration is nested too deeply"


def load(path: Path | None, overrides: Mapping[str, Any]) -> Settings:
    """The settings of a file with `overrides` ("listen.port": 8080) put over them.

    An override replaces what the file says, lists included. Raises ConfigError.
    """
    tree = _read(path) if path else {}
    for key, value in overrides.items():
        _put(tree, key, value)
    return checked(tree)


def checked(tree: Mapping[str, Any]) -> Settings:
    """The settings that `tree`, as a TOML file would be, says. Raises ConfigError."""
    # `--help` needs neither this nor all that is installed.
    import json

    from pdgate.gateway.config.checks import check

    try:
        # As JSON, because that is strict about types ("8000" is no port) and still takes
        # the names of enums. TOML's dates are text to it, which no key accepts.
        settings = Settings.model_validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        # Python 3.13 encodes what pydantic then does not read.
        if any("recursion limit" in one["msg"] for one in error.errors(include_input=False)):
            raise ConfigError(TOO_DEEP) from None
        raise ConfigError(complaints(error, Settings)) from None
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None
    check(settings)
    return settings


def _read(path: Path) -> dict[str, Any]:
    # Many gateways have no file, only flags.
    import tomllib

    try:
        return tomllib.loads(regular.read(path).decode())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    first, _, rest = key.partition(".")
    if not rest:
        tree[first] = value
        return
    section = tree.setdefault(first, {})
    # A section that is no table stays as it is: the type check will name it.
    if isinstance(section, dict):
        _put(section, rest, value)
