"""A file and flags become one tree, or sentences that name the wrong keys."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pdgate.forwarders.base import Mode
from pdgate.gateway.config import ConfigError, Settings, load
from pdgate.gateway.config.checks import mode_for
from pdgate.gateway.config.complaints import known_keys
from pdgate.gateway.config.rules import rule_of
from pdgate.gateway.config.sections import DisaggregationSection
from pdgate.gateway.policies import targets_of
from pdgate.gateway.wiring.parts import limits_of
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.disaggregation import UncachedTokensAbove
from pdgate.scheduling.policy_context import Targets

MOONCAKE_Z = """
pdd_protocol = "vllm-mooncake"
instances = [{role = "decode", url = "http://a", generation = "z"}]
"""

Read = Callable[..., Settings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(toml: str, overrides: Mapping[str, Any] | None = None) -> Settings:
        file = tmp_path / "pdgate.toml"
        file.write_text(toml)
        return load(file, overrides or {})

    return read


def test_nothing_said_gives_the_defaults() -> None:
    settings = load(None, {})

    assert settings == Settings()
    assert settings.max_body_bytes == 16 * 1024 * 1024
    assert settings.fleet == ()


def test_flags_go_over_the_file(read: Read) -> None:
    settings = read('[listen]\nhost = "::1"\nport = 1\n', {"listen.port": 2})

    assert (settings.listen.host, settings.listen.port) == ("::1", 2)


def test_engines_of_flags_replace_those_of_the_file(read: Read) -> None:
    flags = {"instances": [{"role": "decode", "url": "http://b"}]}

    settings = read('[[instances]]\nrole = "decode"\nurl = "http://a"\n', flags)

    assert [instance.url for instance in settings.fleet] == ["http://b"]


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[listen]\nprot = 1", "unknown key 'listen.prot'; the nearest known one is 'listen.port'"),
        ("prot = 1", "unknown key 'prot'; the nearest known one is 'listen.port'"),
        ("timeout = 1", "unknown key 'timeout'; the nearest known one is 'timeouts'"),
        (
            '[[instances]]\nrole = "decode"\nulr = "x"\nurl = "http://a"',
            "unknown key 'instances[0].ulr'; the nearest known one is 'instances[0].url'",
        ),
        ('[listen]\nport = "80"', "'listen.port' should be a valid integer, not '80'"),
        ("[listen]\nport = 70000", "'listen.port' should be less than or equal to 65535"),
        ("[timeouts]\nidle_seconds = nan", "'timeouts.idle_seconds' should be a finite number"),
        ("listen = 1", "'listen' should be an object, not 1"),
        ('debug_routes = "yes"', "'debug_routes' should be a valid boolean, not 'yes'"),
        ("log_level = 1979-05-27", "'log_level' should be 'debug', 'info'"),
        ('scheduling_mode = "both"', "'scheduling_mode' should be 'batch' or 'staged', not 'both'"),
        ('[[instances]]\nrole = "decode"', "'instances[0].url' is missing"),
        ("listen = ", "is not valid TOML"),
        (f"listen = {'[' * 5000}{']' * 5000}", "is not valid TOML"),
        (f"{'listen.' * 5000}port = 1", "nested too deeply"),
    ],
)
def test_what_is_wrong_is_named(read: Read, toml: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(toml)

    assert sentence in str(error.value)


def test_a_key_that_resembles_none_gets_the_list(read: Read) -> None:
    with pytest.raises(ConfigError, match="known here are host, port, workers"):
        read("[listen]\nxyzzy = 1")


def test_every_wrong_key_has_its_line(read: Read) -> None:
    with pytest.raises(ConfigError) as error:
        read("max_attempts = 0\n[listen]\nprot = 1\n")

    assert len(str(error.value).splitlines()) == 2


def test_an_override_cannot_hide_a_section_that_is_no_table(read: Read) -> None:
    with pytest.raises(ConfigError, match="'listen' should be an object"):
        read("listen = 1", {"listen.port": 2})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.toml: No such file"):
        load(tmp_path / "gone.toml", {})


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ('pdd_protocol = "sgl"', "no protocol is called 'sgl'; there are "),
        ('decode_policy = "best"', "'decode_policy': no policy is called 'best'; there are "),
        (
            'pdd_protocol = "sglang"\nscheduling_mode = "staged"',
            "sglang cannot do staged scheduling: both legs start together",
        ),
        (
            '[[instances]]\nrole = "decode"\nurl = "http://a"\nprotocol = "acme"',
            "the instance 'decode-0': no protocol is called 'acme'",
        ),
        (
            MOONCAKE_Z,
            "the instance 'decode-0': vllm-mooncake has no generation 'z'; there are a, b, c, d",
        ),
        (
            'pdd_protocol = "plain"\n[[instances]]\nrole = "decode"\nurl = "http://a"',
            "the instance 'decode-0': the protocol 'plain' hands no KV over, so there is no decode",
        ),
        (
            '[[instances]]\nrole = "plain"\nurl = "http://a"\nprotocol = "sglang"',
            "the instance 'plain-0': an engine of the role plain hands no KV over",
        ),
    ],
)
def test_what_is_not_installed_or_not_possible_is_refused(
    read: Read, toml: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        read(toml)

    assert sentence in str(error.value)


def test_the_mode_is_what_the_protocol_prefers_unless_it_is_asked_for() -> None:
    assert mode_for(Settings(), "sglang") is Mode.BATCH
    assert mode_for(Settings(scheduling_mode=Mode.STAGED), "vllm-nixl") is Mode.STAGED


def test_workers_get_the_same_settings(read: Read) -> None:
    """They travel as JSON in an environment variable."""
    settings = read(
        'scheduling_mode = "staged"\n[[instances]]\nrole = "decode"\nurl = "http://[::1]:8"\n'
    )

    assert Settings.model_validate_json(settings.model_dump_json(), strict=True) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings


@given(st.sampled_from(sorted(known_keys(Settings))), st.data())
def test_every_misspelling_gets_a_known_key(key: str, data: st.DataObject) -> None:
    """A letter is lost; what is proposed exists, and is the one it was for long names."""
    *sections, name = key.split(".")
    if {"instances", "models", "api_keys", "shares", "tenants"} & set(sections):
        return
    lost = data.draw(st.integers(0, len(name) - 1))
    misspelt = name[:lost] + name[lost + 1 :]
    if ".".join([*sections, misspelt]) in known_keys(Settings) or not misspelt:
        return

    with pytest.raises(ConfigError) as error:
        load(None, {".".join([*sections, misspelt]): 1})

    proposed = str(error.value).rpartition("is '")[2].rstrip("'")
    assert proposed in known_keys(Settings)


def test_every_section_is_frozen_and_closed() -> None:
    def sections(tree: type[BaseModel]) -> list[type[BaseModel]]:
        below = [
            field.annotation
            for field in tree.model_fields.values()
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ]
        return [tree, *(found for one in below for found in sections(one))]

    found = sections(Settings)

    assert len(found) > 3
    for section in found:
        assert section.model_config["frozen"]
        assert section.model_config["extra"] == "forbid"


def test_what_parts_take_unless_told_is_what_the_settings_declare() -> None:
    """The simulator and plugins build these without settings."""
    ruled = DisaggregationSection(rule="uncached_tokens_above")

    assert rule_of(ruled) == UncachedTokensAbove()
    assert targets_of(Settings()) == Targets()
    assert limits_of(Settings()) == Limits()


def test_engines_that_one_process_joins_have_a_gateway_of_one_worker() -> None:
    """Each worker would join the pairs anew, and part those of the other."""
    engines = [{"role": "prefill", "url": "http://p:1"}, {"role": "decode", "url": "http://d:1"}]
    keys: dict[str, Any] = {"pdd_protocol": "lmdeploy", "instances": engines}

    assert load(None, {**keys, "listen.workers": 1}).fleet
    with pytest.raises(ConfigError, match="'workers': engines of lmdeploy are joined by one"):
        load(None, {**keys, "listen.workers": 2})


def test_control_of_engines_needs_an_admin_token(read: Read) -> None:
    with pytest.raises(ConfigError, match=r"'control.enabled' needs 'admin_token_file'"):
        read("[control]\nenabled = true\n")
