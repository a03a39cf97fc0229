"""What a watch survives, and what it takes for the directory to be lost."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pdgate.cluster.directory import Joined, Left, Listed, Lost, Refused
from pdgate.cluster.kubernetes.directory import Kubernetes
from pdgate.cluster.kubernetes.follow import Timing, pause_seconds
from tests.cluster.kubernetes.services import QUICK, access, service, slice_name
from tests.cluster.watching import D, P, following
from tests.support.kubernetes import Answer, ApiServer, Asked, api_server
from tests.support.kubernetes_objects import status

TOKENS = [f"eyJhbGciOiJSUzI1NiJ9.{number}.signature" for number in range(2)]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


def directory(server: ApiServer, timing: Timing = QUICK) -> Kubernetes:
    return Kubernetes(access(server), timing)


def is_list(asked: Asked) -> bool:
    return not asked.is_watch and not asked.is_beat


def is_watch(asked: Asked) -> bool:
    return asked.is_watch


async def test_a_watch_asks_for_the_labelled_slices_after_the_list(server: ApiServer) -> None:
    server.put(service(P))
    async with following(directory(server)) as told:
        await told.next()
        (asked,) = await server.heard(is_watch)

    assert asked.query == {
        "labelSelector": "pdgate.dev/role",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "resourceVersion": str(server.version),
        "timeoutSeconds": "240",
    }


async def test_services_without_the_label_are_nobody(server: ApiServer) -> None:
    server.put(service(P))
    bare = service(P)
    del bare["metadata"]["labels"]["pdgate.dev/role"]
    async with following(directory(server)) as told:
        assert await told.next() == Listed({P.key: P})

        server.put(bare)

        assert await told.next() == Left(P.key)


async def test_who_becomes_unready_is_told_at_once(server: ApiServer) -> None:
    server.put(service(P))
    async with following(directory(server)) as told:
        await told.next()
        server.put(service(replace(P, state="unready")))

        joined = await told.first(Joined)

        assert not joined.member.takes_calls


async def test_a_watch_that_the_server_ends_goes_on_at_the_bookmark(server: ApiServer) -> None:
    """The server may have forgotten the version of what we asked for last."""
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        server.bookmark()
        server.put(service(P))
        await told.first(Joined)
        server.bookmark()
        at = server.version
        server.end_watches()
        first, again = await server.heard(is_watch, times=2)
        server.put(service(D))

        assert await told.next() == Joined(D.key, D)
    assert (first.query["resourceVersion"], again.query["resourceVersion"]) == ("100", str(at))
    assert len(await server.heard(is_list)) == 1


async def test_once_in_a_while_everything_is_read_anew(server: ApiServer) -> None:
    server.put(service(P))
    async with following(directory(server, replace(QUICK, resync_seconds=0.0))) as told:
        await told.next()
        await server.heard(is_watch)
        server.end_watches()

        assert await told.next() == Listed({P.key: P})


async def test_a_watch_that_breaks_off_is_no_loss(server: ApiServer) -> None:
    """Somebody is there; what happened meanwhile is in the list."""
    server.put(service(P))
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        server.cut()

        assert await told.next() == Listed({P.key: P})
        await server.heard(is_watch, times=2)
        server.put(service(D))
        assert await told.next() == Joined(D.key, D)


async def test_half_an_event_is_no_event(server: ApiServer) -> None:
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        whole = json.dumps({"type": "ADDED", "object": service(P)}).encode() + b"\n"
        server.say(whole[:200])
        server.cut()

        assert await told.next() == Listed({})


async def test_what_is_forgotten_is_read_anew(server: ApiServer) -> None:
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        with server.changed:
            # In one moment to those who watch: it ended, and much has happened.
            server.end_watches()
            server.put(service(P))
            server.compact()

        assert await told.first(Listed) == Listed({P.key: P})


async def test_410_may_also_be_the_answer_itself(server: ApiServer) -> None:
    """As older servers have it."""
    gone = Answer(410, json.dumps(status(410, "Expired", "too old")).encode())
    refusals = iter([gone])
    server.answer = lambda asked: next(refusals, None) if asked.is_watch else None
    async with following(directory(server)) as told:
        assert [await told.next(), await told.next()] == [Listed({})] * 2


async def test_a_loss_is_told_once_and_the_next_one_again(server: ApiServer) -> None:
    """However many attempts fail in it."""
    away = Answer(503, b"no server is available")
    async with following(directory(server)) as told:
        assert await told.next() == Listed({})
        for _ in range(2):
            asked = len(server.asked)
            server.answer = lambda _: away
            assert isinstance(await told.next(), Lost)
            await server.heard(lambda _: True, times=asked + 2)
            server.answer = lambda _: None

            assert await told.next() == Listed({})


async def test_a_server_that_is_away_is_lost(server: ApiServer) -> None:
    server.put(service(P))
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        server.stop()
        lost = await told.next()
        assert isinstance(lost, Lost)
        assert server.url in lost.why
        server.start()
        server.put(service(D))

        listed = await told.next()
        assert listed == Listed({P.key: P}) or listed == Listed({P.key: P, D.key: D})


async def test_who_comes_before_the_server_is_told_when_it_starts(server: ApiServer) -> None:
    server.stop()
    async with following(directory(server)) as told:
        assert isinstance(await told.next(), Lost)
        server.start()

        assert await told.next() == Listed({})


async def test_an_older_state_of_the_cluster_is_read_anew(server: ApiServer) -> None:
    """A watch from the version that we knew would say nothing for a long time."""
    server.put(service(P))
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        server.stop()
        await told.first(Lost)
        server.restore(version=50)
        server.start()
        assert await told.next() == Listed({})

        await server.heard(is_watch, times=2)
        server.put(service(D))
        assert await told.next() == Joined(D.key, D)


async def test_a_server_that_hangs_is_lost_though_its_connections_stay(server: ApiServer) -> None:
    timing = replace(QUICK, request_seconds=0.3)
    async with following(directory(server, timing)) as told:
        await told.first(Listed)
        server.freeze()
        await told.first(Lost)
        server.thaw()

        assert await told.first(Listed) == Listed({})


async def test_an_event_that_is_nonsense_harms_nobody(server: ApiServer) -> None:
    server.put(service(P))
    async with following(directory(server)) as told:
        await told.next()
        await server.heard(is_watch)
        server.say(b'{"type": "ADDED", "object": 7}\n')

        assert await told.next() == Listed({P.key: P})


async def test_a_slice_that_is_nonsense_is_refused_alone(server: ApiServer) -> None:
    odd = service(P)
    odd["endpoints"] = [7]
    server.put(odd)
    server.put(service(D))
    async with following(directory(server)) as told:
        name = f"llm/{slice_name(P.key)}"
        why = "'endpoints' is no list of JSON objects"
        assert await told.next() == Listed({D.key: D}, {name: why})
        await server.heard(is_watch)
        server.put(service(P))
        assert [await told.next(), await told.next()] == [Joined(P.key, P), Left(name)]

        server.put(odd)

        assert [await told.next(), await told.next()] == [Refused(name, why), Left(P.key)]


def test_a_server_is_left_alone_for_as_long_as_it_asks_within_reason() -> None:
    assert pause_seconds(4.0, 0.0, luck=0.0) == 2.0
    assert pause_seconds(4.0, 0.0, luck=1.0) == 4.0
    assert pause_seconds(4.0, 7.0, luck=1.0) == 7.0
    assert pause_seconds(4.0, 86_400.0, luck=1.0) == 30.0
