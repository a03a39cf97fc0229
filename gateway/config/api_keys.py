"""API keys as they are written down: tables in the configuration, or in a file of their own.

[[api_keys]]
name = "team-a"
sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
models = ["llama"]
max_calls = 100
calls_per_minute = 600

`pdgate key team-a` makes a key and the table for it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from pdgate.cluster import regular
from pdgate.gateway.config.complaints import ConfigError, complaints
from pdgate.gateway.config.setting import Section
from pdgate.gateway.security.keys import NAME, ApiKey
from pdgate.gateway.security.token_limits import MOST_TOKENS, TokenLimits
from pdgate.protocols.priority import LEAST_URGENT, MOST_URGENT, ORDINARY

if TYPE_CHECKING:
    from pdgate.gateway.config.settings import Settings

Limit = Annotated[int, Field(ge=1)]
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
LIMIT_NAMES: Final = tuple(field.name for field in fields(TokenLimits))

_is_sha256 = re.compile(r"[0-9a-f]{64}").fullmatch


def _hash(text: str) -> str:
    """Raises ValueError, without what it got: it may be the key itself, by mistake."""
    if not _is_sha256(text):
        raise ValueError("it is not 64 hexadecimal digits in lower case; `pdgate key` makes them")
    return text


class LimitsEntry(Section):
    """What a caller is held to.

    Attributes:
        models: Those that it may ask; empty for all.
        max_calls: At the same time.
        calls_per_minute: A minute's calls may come at once.
        priority: Of its calls while they wait for engines: 0 is most urgent, 7 least.
        tokens_per_minute: Of prompts and answers together; a minute's may be taken at once.
        prompt_tokens_per_minute: Of prompts alone.
        generated_tokens_per_minute: Of answers alone.
        tokens_per_day: Of prompts and answers together, from midnight to midnight (UTC).
        prompt_tokens_per_day: Of prompts alone.
        generated_tokens_per_day: Of answers alone.
        budget_tokens: Of prompts and answers together, in all; then calls are refused until it is raised.
        count_cached: Whether what an engine had cached of a prompt counts against these limits.
        assumed_tokens: What a call is taken to generate at most that does not say it; else all that its model can.
    """

    models: tuple[str, ...] = ()
    max_calls: Limit | None = None
    calls_per_minute: Limit | None = None
    priority: Annotated[int, Field(ge=MOST_URGENT, le=LEAST_URGENT)] = ORDINARY
    tokens_per_minute: Tokens | None = None
    prompt_tokens_per_minute: Tokens | None = None
    generated_tokens_per_minute: Tokens | None = None
    tokens_per_day: Tokens | None = None
    prompt_tokens_per_day: Tokens | None = None
    generated_tokens_per_day: Tokens | None = None
    budget_tokens: Tokens | None = None
    count_cached: bool = True
    assumed_tokens: Tokens | None = None

    @model_validator(mode="after")
    def _limits_can_be_meant(self) -> Self:
        if why := self.token_limits.contradiction():
            raise ValueError(why)
        return self

    @property
    def token_limits(self) -> TokenLimits:
        return TokenLimits(**{name: getattr(self, name) for name in LIMIT_NAMES})

    def as_key(self, name: str, hash_: str, own: Mapping[str, str]) -> ApiKey:
        """`own`: other names of models -> their own."""
        return ApiKey(
            name=name,
            sha256=hash_,
            models=frozenset(own.get(model, model) for model in self.models),
            max_calls=self.max_calls,
            calls_per_minute=self.calls_per_minute,
            priority=self.priority,
            tokens=self.token_limits,
        )


class ApiKeyEntry(LimitsEntry):
    """One key, of which only the hash is kept.

    Attributes:
        name: Shown in logs and metrics.
        sha256: Of the key, in hexadecimal.
    """

    name: Annotated[str, Field(pattern=NAME)]
    sha256: Annotated[str, AfterValidator(_hash)]


class KeyFile(Section):
    """A file of keys holds nothing else."""

    api_keys: tuple[ApiKeyEntry, ...]


def api_keys(
    entries: Sequence[ApiKeyEntry], file: str, aliases: Mapping[str, str] | None = None
) -> tuple[ApiKey, ...]:
    """Those of the configuration and of the file, if there is one. Raises ConfigError.

    `aliases`: other names of models, which keys may name as well, -> their own.
    """
    own = aliases or {}
    found = [*entries, *(_read(file) if file else ())]
    for what in ("name", "sha256"):
        times = Counter(getattr(entry, what) for entry in found)
        if doubles := [value for value, count in times.items() if count > 1]:
            raise ConfigError(f"'api_keys': several have the {what} {doubles[0]!r}")
    return tuple(entry.as_key(entry.name, entry.sha256, own) for entry in found)


def with_keys(settings: "Settings") -> "Settings":
    """The same, with the keys of the file among its own, and no file. Raises ConfigError."""
    if not settings.api_keys_file:
        return settings
    entries = (*settings.api_keys, *_read(settings.api_keys_file))
    return settings.model_copy(update={"api_keys": entries, "api_keys_file": ""})


def _read(file: str) -> tuple[ApiKeyEntry, ...]:
    import json
    import tomllib

    try:
        tree = tomllib.loads(regular.read(file).decode())
        found = KeyFile.model_validate_json(json.dumps(tree, default=str), strict=True)
    except OSError as error:
        raise ConfigError(f"'api_keys_file': cannot read {file}: {error.strerror}") from None
    except ValidationError as error:
        raise ConfigError(f"'api_keys_file': {file}: {complaints(error, KeyFile)}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"'api_keys_file': {file} is not valid TOML: {error}") from None
    if not found.api_keys:
        # Without a key no client could call, which is not meant.
        raise ConfigError(f"'api_keys_file': {file} has no key")
    return found.api_keys
