"""TLS and mutual TLS, to engines and to clients, with real handshakes on the loopback."""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import httpx2
import pytest

from pdgate.forwarders.base import Leg
from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.probe import look
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.security.tls import UnusableTlsFile, engine_context, server_context
from pdgate.gateway.sleep_mode import SleepModes
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.upstream.settings import UpstreamSettings
from pdgate.protocols.call import CHAT
from pdgate.protocols.errors import EngineRefused
from pdgate.protocols.instance import Instance, Role
from tests.support.answers import streamed
from tests.support.certificates import Authority, Certificate, encrypted
from tests.support.fleet import (
    ANSWER,
    PATIENCE_SECONDS,
    Engine,
    as_json,
    question,
    says,
    streams,
)
from tests.support.processes import child
from tests.support.raw_server import Peer, raw_server
from tests.support.scripted import chat

NAME = "engine.internal"


@pytest.fixture(scope="module")
def ours(authority: Authority) -> Certificate:
    return authority.signs("pdgate", "DNS:localhost", "IP:127.0.0.1")


@pytest.fixture(scope="module")
def engines(authority: Authority) -> Certificate:
    """Its name is not the host that it is reached by."""
    return authority.signs(NAME)


@pytest.fixture
def strict(authority: Authority, engines: Certificate) -> ssl.SSLContext:
    """Of an engine that wants a certificate of those who call."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(engines.cert, engines.key)
    context.load_verify_locations(cafile=authority.cert)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


async def asked(access: EngineAccess, server: ssl.SSLContext) -> int:
    """How many calls an engine got. Raises EngineRefused."""
    engine = Engine(Role.PLAIN)
    settings = UpstreamSettings(tls=access.tls, server_name=access.server_name)
    async with raw_server(engine.serve, tls=server) as running, HttpUpstream(settings) as upstream:
        instance = Instance("s0", running.url, Role.PLAIN, "plain")
        await upstream.ask(Leg(instance, CHAT, {}), chat())
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await look(access, instance, SleepModes(), PATIENCE_SECONDS)).models == ["m"]
    return len(engine.calls)


async def test_calls_and_probes_show_our_certificate_and_check_the_engines(
    authority: Authority, ours: Certificate, strict: ssl.SSLContext
) -> None:
    context = engine_context(authority.cert, ours.cert, ours.key)

    assert await asked(EngineAccess(context, NAME), strict) == 1


async def test_an_engine_of_another_name_is_not_ours(
    authority: Authority, ours: Certificate, strict: ssl.SSLContext
) -> None:
    context = engine_context(authority.cert, ours.cert, ours.key)

    with pytest.raises(EngineRefused):
        await asked(EngineAccess(context), strict)


async def test_an_engine_of_another_authority_is_not_ours(
    tmp_path: Path, ours: Certificate, strict: ssl.SSLContext
) -> None:
    other = Authority(tmp_path, "other")

    with pytest.raises(EngineRefused):
        await asked(EngineAccess(engine_context(other.cert, ours.cert, ours.key), NAME), strict)


async def test_without_files_the_systems_authorities_count(strict: ssl.SSLContext) -> None:
    with pytest.raises(EngineRefused):
        await asked(EngineAccess(engine_context(), NAME), strict)


def test_nothing_old_is_spoken(authority: Authority, ours: Certificate) -> None:
    assert engine_context(authority.cert).minimum_version >= ssl.TLSVersion.TLSv1_2
    assert server_context(ours.cert, ours.key, "").minimum_version >= ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("which", ["gone", "nonsense", "another key", "password", "ca"])
def test_files_that_will_not_do_are_named(
    authority: Authority, ours: Certificate, engines: Certificate, tmp_path: Path, which: str
) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    cert, key, ca = {
        "gone": ("gone.pem", "", ""),
        "nonsense": (str(nonsense), "", ""),
        "another key": (ours.cert, engines.key, ""),
        "password": (ours.cert, encrypted(ours.key), ""),
        "ca": (ours.cert, ours.key, str(nonsense)),
    }[which]

    with pytest.raises(ConfigError, match="cannot be used") as caught:
        load(None, {"tls.cert_file": cert, "tls.key_file": key, "tls.client_ca_file": ca})
    with pytest.raises(UnusableTlsFile):
        engine_context(ca, cert, key)

    assert "'tls'" in str(caught.value)
    assert (ca or key or cert) in str(caught.value)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"tls.key_file": "k.pem"}, "needs 'tls.cert_file'"),
        ({"tls.client_ca_file": "c.pem"}, "needs 'tls.cert_file'"),
        ({"engine_tls.key_file": "k.pem"}, "'engine_tls.cert_file'"),
        ({"engine_tls.ca_file": "gone.pem"}, "'engine_tls': gone.pem"),
    ],
)
def test_half_a_setting_ends_the_start(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(None, given)


@pytest.fixture
def clients(authority: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """With a certificate, and without."""
    known = engine_context(authority.cert)
    certificate = authority.signs("client")
    known.load_cert_chain(certificate.cert, certificate.key)
    return known, engine_context(authority.cert)


async def test_the_command_speaks_tls_on_both_sides_and_serves_only_known_clients(
    authority: Authority,
    ours: Certificate,
    strict: ssl.SSLContext,
    clients: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    known, unknown = clients

    async def answers(peer: Peer) -> None:
        asked = json.loads(peer.request.body)
        await (streams(*streamed("a")) if asked["stream"] else says(as_json(ANSWER)))(peer)

    engine = Engine(Role.PLAIN, answers)
    async with raw_server(engine.serve, tls=strict) as running:
        command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--plain", running.url]
        command += ["--tls-cert-file", ours.cert, "--tls-key-file", ours.key]
        command += ["--tls-client-ca-file", authority.cert, "--engine-ca-file", authority.cert]
        command += ["--engine-cert-file", ours.cert, "--engine-cert-key-file", ours.key]
        command += ["--engine-server-name", NAME]
        with child(command, name="pdgate serve") as process:
            line = await asyncio.to_thread(process.wait_for_line, r"listens on (https://\S+)")
            async with httpx2.AsyncClient(
                base_url=line[1], verify=known, trust_env=False, timeout=PATIENCE_SECONDS
            ) as client:
                answer = await client.post(CHAT, json=question(stream=False))
                events = await client.post(CHAT, json=question(stream=True))
            async with httpx2.AsyncClient(verify=unknown, trust_env=False) as client:
                with pytest.raises((httpx2.TransportError, ssl.SSLError)):
                    await client.get(f"{line[1]}/health")

    assert (answer.status_code, events.status_code) == (200, 200)
    assert len(engine.calls) == 2
