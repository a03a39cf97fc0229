"""Engines are asked once a round, and what is known of them is as good as its age."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from pdgate.gateway.engine_metrics import reader
from pdgate.gateway.engine_metrics.page import MetricsPage, parse
from pdgate.gateway.engine_metrics.reader import (
    STALE_INTERVALS,
    EngineReading,
    MetricsReader,
    PrefillQueue,
)
from pdgate.gateway.upstream.one_shot import Gone, OneShotAnswer
from pdgate.scheduling import account
from pdgate.scheduling.account import calls_there
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.status import Status
from tests.support.scripted import D0, P0, P1, fleet
from tests.support.visited import Answer, Question, Visited
from tests.support.waiting import PATIENCE_SECONDS

INTERVAL_SECONDS = 5.0


class Scene:
    """
    Attributes:
        pages: Host -> its /metrics; hosts without one refuse.
        seen: (instance id, page), as they were told.
    """

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        self.now = 0.0
        self.instances = fleet(P0, D0)
        self.pages: dict[str, Callable[[], OneShotAnswer]] = {}
        self.answer: Answer = self._answer
        self.seen: list[tuple[str, MetricsPage]] = []
        self.has_seen = asyncio.Event()
        self.reader = MetricsReader(
            self.instances,
            interval_seconds,
            2.0,
            self._see,
            lambda: self.now,
            Visited(lambda question: self.answer(question)),
        )

    def says(self, host: str, text: str) -> None:
        self.pages[host] = lambda: page_of(text)

    async def round(self, seconds_later: float = 0.0) -> None:
        self.now += seconds_later
        await self.reader.round()

    def status(self, instance_id: str) -> Status | None:
        return self.endpoint(instance_id).status

    def endpoint(self, instance_id: str) -> Endpoint:
        endpoint = self.instances.get(instance_id)
        assert endpoint is not None
        return endpoint

    def _see(self, endpoint: Endpoint, page: MetricsPage) -> None:
        self.seen.append((endpoint.instance.id, page))
        self.has_seen.set()

    async def _answer(self, question: Question) -> OneShotAnswer:
        assert question.path == "/metrics"
        page = self.pages.get(question.host)
        if page is None:
            raise Gone("refused")
        return page()


def page_of(text: str) -> OneShotAnswer:
    return OneShotAnswer(200, text.encode())


P_HOST, D_HOST = P0.host, D0.host


async def test_a_page_becomes_the_engines_status() -> None:
    scene = Scene()
    scene.says(D_HOST, "vllm:num_requests_running 3\nvllm:kv_cache_usage_perc 0.25")

    await scene.round()

    assert scene.status("d0") == Status(kv_free=0.75, running=3)
    assert scene.status("p0") is None
    assert [instance_id for instance_id, _ in scene.seen] == ["d0"]


async def test_time_per_step_is_that_of_the_steps_in_between() -> None:
    scene = Scene()
    name = "vllm:inter_token_latency_seconds"
    for steps, seconds in ((10, 9.0), (14, 9.2)):
        scene.says(D_HOST, f"{name}_count {steps}\n{name}_sum {seconds}")
        await scene.round(INTERVAL_SECONDS)

    status = scene.status("d0")
    assert status is not None
    assert status.step_seconds == pytest.approx(0.05)


async def test_what_is_known_goes_stale() -> None:
    scene = Scene()
    scene.says(D_HOST, "vllm:num_requests_running 3")
    await scene.round()
    del scene.pages[D_HOST]

    await scene.round(INTERVAL_SECONDS * reader.STALE_INTERVALS)
    assert scene.status("d0") == Status(running=3)
    assert scene.reader.age_seconds("d0") == INTERVAL_SECONDS * reader.STALE_INTERVALS

    await scene.round(0.1)
    assert scene.status("d0") is None


async def test_what_is_stale_is_gone_though_the_engine_only_hangs() -> None:
    scene = Scene()
    scene.says(D_HOST, "vllm:num_requests_running 3")
    await scene.round()
    endpoint = scene.endpoint("d0")
    asked = asyncio.Event()

    async def hang(_: Question) -> OneShotAnswer:
        asked.set()
        return await asyncio.Future()

    scene.now += INTERVAL_SECONDS * reader.STALE_INTERVALS + 0.1
    scene.answer = hang
    round_ = asyncio.create_task(scene.reader.round())
    await asked.wait()
    assert (endpoint.status, calls_there(endpoint)) == (None, 0)
    round_.cancel()


async def test_calls_of_others_are_those_beyond_ours_when_it_was_asked_or_answered() -> None:
    scene = Scene()
    endpoint = scene.endpoint("d0")
    endpoint.calls = 5

    def answer() -> OneShotAnswer:
        # One ends and none begins while it is asked.
        endpoint.calls = 4
        return page_of("vllm:num_requests_running 30")

    scene.pages[D_HOST] = answer
    await scene.round()

    assert calls_there(endpoint) == 29


async def test_an_engine_that_lies_has_our_calls_all_the_same() -> None:
    scene = Scene()
    endpoint = scene.endpoint("d0")
    endpoint.calls = 5
    for lie in ("0", "-1000", "NaN", "-Inf"):
        scene.says(D_HOST, f"vllm:num_requests_running {lie}\nvllm:num_requests_waiting {lie}")
        await scene.round()
        assert calls_there(endpoint) == 5


async def test_a_page_without_load_is_no_status() -> None:
    scene = Scene()
    scene.says(D_HOST, "process_cpu_seconds_total 3")

    await scene.round()

    assert scene.status("d0") is None
    assert scene.reader.age_seconds("d0") == 0


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (lambda: OneShotAnswer(404, b""), "d0: GET /metrics answered 404"),
        (lambda: page_of("a" * 2000), "d0: GET /metrics: its answer is longer than 1000"),
    ],
)
async def test_who_does_not_tell_is_named_once(
    page: Callable[[], OneShotAnswer],
    complaint: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", logger=reader.__name__)
    monkeypatch.setattr(reader, "MAX_PAGE_BYTES", 1000)
    scene = Scene()
    scene.says(P_HOST, "")
    scene.pages[D_HOST] = page

    for _ in range(2):
        await scene.round()
    scene.says(D_HOST, "vllm:num_requests_running 3")
    await scene.round()

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert said[0].startswith(complaint)
    assert said[1] == "d0: its /metrics can be read"


async def test_one_that_hangs_holds_nobody_up() -> None:
    scene = Scene()
    scene.says(D_HOST, "vllm:num_requests_running 3")
    hanging = asyncio.Event()

    async def answer(question: Question) -> OneShotAnswer:
        if question.host == P_HOST:
            hanging.set()
            await asyncio.Event().wait()
        return scene.pages[D_HOST]()

    scene.answer = answer
    round_ = asyncio.create_task(scene.reader.round())
    await hanging.wait()
    await scene.has_seen.wait()
    round_.cancel()

    assert scene.status("d0") == Status(running=3)


async def test_what_an_engine_told_that_was_replaced_meanwhile_is_not_its_successors() -> None:
    scene = Scene()

    def replaced() -> OneShotAnswer:
        scene.instances.put(replace(D0, url="http://10.0.9.9:8200"))
        return page_of("vllm:num_requests_running 3")

    scene.pages[D_HOST] = replaced
    await scene.round()

    assert (scene.status("d0"), scene.seen) == (None, [])


async def test_an_engine_at_another_address_is_another_engine() -> None:
    scene = Scene()
    name = "vllm:inter_token_latency_seconds"
    scene.says(D_HOST, f"{name}_count 10\n{name}_sum 1")
    await scene.round()
    scene.instances.put(replace(D0, url="http://10.0.9.9:8200"))
    scene.says("10.0.9.9", f"{name}_count 20\n{name}_sum 2")

    await scene.round()

    assert scene.status("d0") is None


async def test_nothing_is_kept_of_engines_that_are_gone() -> None:
    scene = Scene()
    scene.says(D_HOST, "vllm:num_requests_running 3")
    await scene.round()

    scene.instances.remove("d0")
    await scene.round()

    assert scene.reader.readings == {}


async def test_who_comes_back_and_does_not_tell_is_named_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger=reader.__name__)
    scene = Scene()
    scene.says(P_HOST, "")

    await scene.round()
    scene.instances.remove("d0")
    await scene.round()
    scene.instances.put(D0)
    await scene.round()

    assert len(caplog.records) == 2


async def test_the_prefill_queue_is_shared_out_to_those_that_take_from_it() -> None:
    """Which of them takes a prompt is not known before, and decode engines take none."""
    scene = Scene()
    scene.instances.put(P1)
    scene.instances.mark_up("p1", ["m"])
    page = "pdgate_prefill_queue_waiting 5\nvllm:num_requests_running 1"
    for host in (P_HOST, P1.host, D_HOST):
        scene.says(host, page)

    await scene.round()

    shares = {name: scene.status(name) for name in ("p0", "p1", "d0")}
    assert shares == {
        "p0": Status(running=1, queue_share=3),
        "p1": Status(running=1, queue_share=3),
        "d0": Status(running=1),
    }
    assert calls_there(scene.endpoint("p0")) == 4


async def test_who_answers_is_asked_sooner_until_its_pace_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the interval alone the second page would come in half an hour."""
    monkeypatch.setattr(reader, "LEARN_SECONDS", 0.01)
    scene, numbers = Scene(interval_seconds=3600), count(1)
    name = "vllm:inter_token_latency_seconds"

    def page() -> OneShotAnswer:
        n = next(numbers)
        return page_of(f"{name}_sum {n * 0.5}\n{name}_count {n * 50}")

    scene.pages = {D_HOST: page, P_HOST: page}
    decode = scene.endpoint("d0")
    decode.answering = 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        running = asyncio.create_task(scene.reader.run())
        while not decode.latency.step_time.known:
            scene.has_seen.clear()
            await scene.has_seen.wait()
        running.cancel()

    assert decode.latency.step_seconds(1, 0) == pytest.approx(0.01)
    asked = Counter(name for name, _ in scene.seen)
    assert asked["d0"] == 3
    assert asked["p0"] <= 2


async def test_one_that_does_not_say_its_pace_is_left_alone_and_keeps_nobody_from_saying_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "LEARN_SECONDS", 0.001)
    monkeypatch.setattr(reader, "MOST_LOOKS", 3)
    monkeypatch.setattr(account, "LEARN_AT_ONCE", 1)
    scene = Scene(interval_seconds=3600)
    scene.says(P_HOST, "vllm:num_requests_running 1")
    scene.says(D_HOST, "vllm:num_requests_running 1")
    for endpoint in scene.instances:
        endpoint.answering = 1
    first, second = (endpoint.instance.id for endpoint in scene.instances)

    async with asyncio.timeout(PATIENCE_SECONDS):
        running = asyncio.create_task(scene.reader.run())
        while Counter(name for name, _ in scene.seen)[second] < 4:
            scene.has_seen.clear()
            await scene.has_seen.wait()
        running.cancel()

    # The two rounds that have begun, and the looks between.
    assert Counter(name for name, _ in scene.seen)[first] <= 3 + 2


def never(endpoint: Endpoint, page: MetricsPage) -> None:
    raise AssertionError("nobody is asked")


def queue_of(*up: bool | None, age_seconds: float = 0.0) -> PrefillQueue:
    """As engines with these words on their last pages see it."""
    reader = MetricsReader(fleet(), INTERVAL_SECONDS, 2.0, never, lambda: age_seconds)
    reader.readings |= {
        str(number): EngineReading("http://d", 0.0, MetricsPage(queue_up=one))
        for number, one in enumerate(up)
    }
    return PrefillQueue(reader)


@pytest.mark.parametrize(
    ("page", "up"),
    [
        (b'pdgate_prefill_queue_up{model_name="m"} 1.0', True),
        (b'pdgate_prefill_queue_up{model_name="m"} 0.0', False),
        (b"", None),
    ],
)
def test_an_engine_says_so_on_its_page(page: bytes, up: bool | None) -> None:
    assert parse(page).queue_up is up


@pytest.mark.parametrize(
    ("up", "said"),
    [
        ([], None),
        ([None, None], None),
        ([True, True, None], {"state": "current", "engines": 2, "away_from": 0}),
        ([True, False], {"state": "degraded", "engines": 2, "away_from": 1}),
    ],
)
def test_one_that_does_not_reach_it_is_enough(
    up: list[bool | None], said: dict[str, object] | None
) -> None:
    assert queue_of(*up).as_json() == said


def test_what_was_said_long_ago_says_nothing() -> None:
    stale = STALE_INTERVALS * INTERVAL_SECONDS + 1

    assert queue_of(False, age_seconds=stale).as_json() is None
