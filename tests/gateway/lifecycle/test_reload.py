"""A gateway takes another configuration while it serves: all of it, or nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.instances import InstanceEntry
from pdgate.gateway.config.sections import (
    DisaggregationSection,
    HealthSection,
    ListenSection,
    TargetsSection,
    TimeoutsSection,
)
from pdgate.gateway.config.setting import OnReload
from pdgate.gateway.lifecycle.reload import Reload, changed_keys
from pdgate.gateway.lifecycle.source import SettingsSource
from pdgate.gateway.security.keys import hash_of
from pdgate.protocols.instance import Role
from tests.support.fleet import (
    PATIENCE_SECONDS,
    Engine,
    Gateway,
    Held,
    as_json,
    gateway_of,
)
from tests.support.raw_server import RawServer, raw_server

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}


def test_what_differs_is_named_by_its_key() -> None:
    before, after = Settings(), Settings(listen=ListenSection(port=1), max_attempts=7)

    assert list(changed_keys(before, before)) == []
    assert list(changed_keys(before, after)) == ["listen.port", "max_attempts"]


def parts(reload: Reload, *rules: OnReload) -> list[OnReload]:
    """Told when they change."""
    told: list[OnReload] = []
    for rule in rules:

        def prepare(wanted: Settings, rule: OnReload = rule) -> Callable[[], None]:
            return lambda: told.append(rule)

        reload.part(rule, prepare)
    return told


def test_only_the_parts_that_differ_change() -> None:
    reload = Reload(Settings())
    told = parts(reload, OnReload.TIMES, OnReload.TARGETS, OnReload.INSIGHT)
    wanted = Settings(timeouts=TimeoutsSection(connect_seconds=1, idle_seconds=1), call_log=True)

    assert reload.take(wanted) == ["timeouts.connect_seconds", "timeouts.idle_seconds", "call_log"]

    assert told == [OnReload.TIMES, OnReload.INSIGHT]
    assert reload.settings == wanted
    assert reload.take(wanted) == []


def test_what_needs_a_restart_is_named_and_nothing_changes() -> None:
    reload = Reload(Settings())
    told = parts(reload, OnReload.INSIGHT)
    wanted = Settings(listen=ListenSection(port=1, workers=2), call_log=True)

    with pytest.raises(ConfigError, match=r"'listen\.port', 'listen\.workers'.*restart"):
        reload.take(wanted)

    assert told == []
    assert reload.settings == Settings()


def test_a_part_that_says_no_leaves_all_as_it_was() -> None:
    reload = Reload(Settings())
    told = parts(reload, OnReload.TIMES, OnReload.INSIGHT)

    def no(wanted: Settings) -> Callable[[], None]:
        raise ConfigError("no")

    reload.part(OnReload.INTAKE, no)

    with pytest.raises(ConfigError, match="no"):
        reload.take(Settings(max_attempts=7, passthrough=True, call_log=True))
    assert told == []


def test_a_source_brings_the_keys_of_the_file_that_it_names(tmp_path: Path) -> None:
    """So a worker that starts later has those that are in force, whatever the file says by then."""
    path, keys = tmp_path / "pdgate.toml", tmp_path / "keys.toml"
    path.write_text(f"max_attempts = 2\napi_keys_file = {json.dumps(str(keys))}\n")
    keys.write_text(f'[[api_keys]]\nname = "a"\nsha256 = "{hash_of(b"first")}"\n')

    found = SettingsSource(path, {"listen.port": 0}).read()

    assert (found.max_attempts, found.listen.port) == (2, 0)
    assert [key.name for key in found.api_keys] == ["a"]
    assert found.api_keys_file == ""
    keys.unlink()
    with pytest.raises(ConfigError, match="api_keys_file"):
        SettingsSource(path).read()
    assert SettingsSource().read() == Settings()


class Site:
    """A gateway whose configuration the test writes."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        self.gateway = gateway
        self.wanted = settings
        gateway.reload.source = lambda: self.wanted

    async def becomes(self, **settings: Any) -> list[str]:
        self.wanted = self.wanted.model_copy(update=settings)
        answer = await self.gateway.http.post("/admin/reload", headers=KNOWN)
        assert answer.status_code == 200, answer.text
        found: list[str] = answer.json()["changed"]
        return found


@pytest.fixture
async def other() -> AsyncIterator[tuple[Engine, RawServer]]:
    """An engine that is not configured yet."""
    engine = Engine(Role.PLAIN)
    async with raw_server(engine.serve) as server:
        engine.url = server.url
        yield engine, server


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    async with gateway_of(Engine(Role.PLAIN), admin_token_file=str(token)) as gateway:
        yield Site(gateway, gateway.reload.settings)


async def test_all_that_is_said_to_be_changeable_has_somebody_to_change_it(site: Site) -> None:
    assert site.gateway.reload.rules == {*OnReload} - {OnReload.RESTART}


def entry(engine: Engine) -> InstanceEntry:
    return InstanceEntry(role=engine.role, url=engine.url)


async def test_an_engine_is_added_and_the_one_that_was_there_serves_on(
    site: Site, other: tuple[Engine, RawServer]
) -> None:
    """The new one comes first in the file, so the old one goes by another name now."""
    old, (new, _) = site.gateway.engines[0], other

    assert await site.becomes(instances=(entry(new), entry(old))) == ["instances"]

    async with asyncio.timeout(PATIENCE_SECONDS):
        # Which of them is asked first is not said.
        while not (new.calls and old.calls):
            assert (await site.gateway.chat()).status_code == 200


async def test_a_call_to_an_engine_that_is_taken_out_ends_well(
    site: Site, other: tuple[Engine, RawServer]
) -> None:
    held, (new, _) = Held(), other
    site.gateway.engines[0].script = held
    asking = asyncio.create_task(site.gateway.chat())
    call = await held.next()

    await site.becomes(instances=(entry(new),))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await site.gateway.chat()).status_code != 200:
            pass
    await call.peer.send(as_json({"choices": [{"finish_reason": "stop"}]}))

    assert (await asking).status_code == 200
    assert len(site.gateway.engines[0].calls) == 1
    shown = (await site.gateway.http.get("/admin/instances", headers=KNOWN)).json()
    assert [one["url"] for one in shown] == [new.url]


async def test_what_counts_per_call_counts_from_the_next_one(site: Site) -> None:
    held = Held()
    site.gateway.engines[0].script = held
    changed = await site.becomes(
        timeouts=TimeoutsSection(first_byte_seconds=0.1),
        max_attempts=1,
        max_body_bytes=500,
        plain_policy="round_robin",
        disaggregation=DisaggregationSection(rule="never"),
        health=HealthSection(interval_seconds=0.01),
        debug_headers=True,
    )

    assert changed[0] == "disaggregation.rule"
    assert (await site.gateway.chat()).status_code == 504
    assert (await site.gateway.chat(user="x" * 500)).status_code == 413
    answer = await site.gateway.http.get("/admin/disaggregation", headers=KNOWN)
    assert answer.json()["rule"] == "never"


async def test_new_targets_make_policies_anew(site: Site) -> None:
    changed = await site.becomes(
        plain_policy="least_latency", targets=TargetsSection(ttft_seconds=1.0)
    )

    assert changed == ["plain_policy", "targets.ttft_seconds"]
    assert (await site.gateway.chat()).status_code == 200


async def test_calls_wait_for_targets_from_the_next_start_on(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway that was started without any has no place where calls wait."""
    await site.becomes(targets=TargetsSection(ttft_seconds=1.0))

    assert "targets: calls wait in the gateway for them from the next start on" in caplog.text


async def test_what_an_operator_has_said_goes_before_the_file(site: Site) -> None:
    path = "/admin/disaggregation"
    await site.gateway.http.put(path, json={"rule": "auto"}, headers=KNOWN)
    await site.becomes(disaggregation=DisaggregationSection(rule="never"))

    assert (await site.gateway.http.get(path, headers=KNOWN)).json()["rule"] == "auto"


async def test_a_bad_configuration_changes_nothing_and_says_why(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    before = site.gateway.reload.settings
    site.wanted = site.wanted.model_copy(
        update={"listen": ListenSection(port=1), "instances": (), "max_attempts": 1}
    )

    answer = await site.gateway.http.post("/admin/reload", headers=KNOWN)

    assert answer.status_code == 400
    assert "'listen.port'" in answer.json()["error"]["message"]
    assert "'listen.port'" in caplog.text
    assert site.gateway.reload.settings == before
    assert (await site.gateway.chat()).status_code == 200


async def test_only_who_knows_the_token_may(site: Site) -> None:
    site.wanted = site.wanted.model_copy(update={"instances": ()})

    assert (await site.gateway.http.post("/admin/reload")).status_code == 401
    assert (await site.gateway.chat()).status_code == 200


async def test_keys_change_with_their_file(tmp_path: Path) -> None:
    """Its name stays; what it holds is read each time."""
    token, file = tmp_path / "token", tmp_path / "keys.toml"
    token.write_text(TOKEN)

    def admit(secret: str) -> None:
        file.write_text(f'[[api_keys]]\nname = "a"\nsha256 = "{hash_of(secret.encode())}"\n')

    admit("first")
    given = {"admin_token_file": str(token), "api_keys_file": str(file)}
    async with gateway_of(Engine(Role.PLAIN), **given) as gateway:
        site = Site(gateway, gateway.reload.settings)
        first, second = ({"authorization": f"Bearer {name}"} for name in ("first", "second"))
        assert (await gateway.chat(first)).status_code == 200

        admit("second")
        assert await site.becomes() == []

        assert (await gateway.chat(first)).status_code == 401
        assert (await gateway.chat(second)).status_code == 200
        file.write_text("nonsense")
        answer = await gateway.http.post("/admin/reload", headers=KNOWN)
        assert answer.status_code == 400
        assert (await gateway.chat(second)).status_code == 200


async def test_whether_keys_are_asked_for_at_all_needs_a_restart(site: Site) -> None:
    entry = ApiKeyEntry(name="a", sha256=hash_of(b"key"))
    site.wanted = site.wanted.model_copy(update={"api_keys": (entry,)})
    answer = await site.gateway.http.post("/admin/reload", headers=KNOWN)

    assert answer.status_code == 400
    assert "needs a restart" in answer.text
    assert (await site.gateway.chat()).status_code == 200
