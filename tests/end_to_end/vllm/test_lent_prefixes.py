"""decode-first on stock vLLM, where decode has a chat's first turn: it lends that to prefill, which has nothing.

    p        kv_load_failure_policy "recompute": reads what is lent
    wide     the same, with two tensor-parallel workers, which read a KV head each
    strict   "fail", vLLM's default: computes
    d        has the first turn, as it has answered it; its loans go wrong as a file says

A file, because it says so from one call to the next (shim/faulty_lender.py).
"""

import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any, Final

import pytest
from openai import APIError

from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete, prompt
from tests.end_to_end.vllm.engines import (
    BLOCK,
    LEASE_SECONDS,
    PDGATE_TCP,
    START_SECONDS,
    Engine,
    Fleet,
    Transfer,
    ready,
)
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.end_to_end.vllm.metrics import Counted, Prompts, held_share, settles
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Child, answers_200, child
from tests.support.redis import redis_server

LENT: Final = 3 * BLOCK
"""Full blocks of the first turn: 101 tokens, and all but the last of the 24 that answer them."""

RECOMPUTES: Final = {"kv_load_failure_policy": "recompute"}
DEAD_SECONDS: Final = 4 * LEASE_SECONDS


class Lending:
    """
    Attributes:
        serve: The flags that tell the gateway of the engines.
    """

    transfer: Transfer = PDGATE_TCP

    def __init__(self, fleet: Fleet, folder: Path, stack: ExitStack) -> None:
        self._logs, self._model = fleet.logs, fleet.model
        self._fault = folder / "fault"
        self._queue = stack.enter_context(redis_server(folder)).url
        self._worker_life = stack.enter_context(ExitStack())
        self._served: Engine | None = None
        self._kv: dict[str, str] = {}

        def start(name: str, role: str, *flags: str, **said: Any) -> tuple[Child, int]:
            port, kv_port = free_port(), free_port()
            self._kv[f"http://{LOOPBACK}:{port}"] = f"{LOOPBACK}:{kv_port}"
            extra = said.pop("extra", {})
            flag, text = PDGATE_TCP.flags(role, port, kv_port)
            config = json.loads(text)
            config |= said
            config["kv_connector_extra_config"] |= extra
            words = [flag, json.dumps(config), *flags]
            env = {"PDGATE_TEST_FAULT": str(self._fault)}
            return fleet.start(stack, f"lending-{name}", port, words, env), port

        starting = [
            start("p", "kv_producer", **RECOMPUTES),
            start("wide", "kv_producer", "--tensor-parallel-size", "2", **RECOMPUTES),
            start("strict", "kv_producer"),
            start(
                "d",
                "kv_consumer",
                extra={"queue": self._queue},
                kv_connector_module_path="faulty_lender",
            ),
        ]
        self.prefill, self.wide, self.strict, self.decode = (ready(*one) for one in starting)
        self.readers = {"p": self.prefill, "wide": self.wide}
        for engine in self.readers.values():
            # An engine's first prompt may take longer than decode waits for one, on a busy machine.
            with client(engine.url) as asked:
                complete(asked, prompt(BLOCK, "the first one"))
        self.serve = (
            *PDGATE_TCP.prefill_flag(self.prefill.url, self._kv[self.prefill.url]),
            *("--decode", self.decode.url),
        )

    def taken_by(self, engine: Engine) -> None:
        """The worker that takes prompts off the queue is beside this one from now on, and no other is."""
        if self._served is engine:
            return
        self._worker_life.close()
        at = ["--engine", engine.url, "--kv", self._kv[engine.url]]
        words = ["--queue", self._queue, "--model", str(self._model), *at]
        log = self._logs / f"lending-worker-{free_port()}.log"
        worker = self._worker_life.enter_context(
            child([sys.executable, "-m", "pdgate", "prefill-worker", *words], log=log)
        )
        worker.wait_for_line("takes prompts for", START_SECONDS)
        self._served = engine

    @contextmanager
    def wrong(self, fault: str) -> Iterator[None]:
        self._fault.write_text(fault)
        try:
            yield
        finally:
            self._fault.unlink()

    def second_turn(self, salt: str) -> list[int]:
        """After decode has answered the first one."""
        first = prompt(3 * BLOCK + 5, salt)
        with client(self.decode.url) as asked:
            answer = complete(asked, first).token_ids
        assert len(answer) == GREEDY["max_tokens"]
        return [*first, *answer, *prompt(2 * BLOCK + 7, f"{salt}, second turn")]

    def is_free(self) -> bool:
        engines = (self.prefill, self.wide, self.decode)
        return settles(lambda: not any(map(held_share, engines)))


@pytest.fixture(scope="module")
def lending(
    fleet: Fleet, tmp_path_factory: pytest.TempPathFactory, starting_alone: object
) -> Iterator[Lending]:
    with ExitStack() as stack:
        yield Lending(fleet, tmp_path_factory.mktemp("lending"), stack)


@pytest.fixture(scope="module")
def gateway(fleet: Fleet, lending: Lending) -> Iterator[Gateway]:
    with gateway_over(lending, "batch", fleet.logs, "decode-first") as gateway:
        yield gateway


def asked_of(url: str, turn: list[int]) -> Said:
    with client(url) as asked:
        return complete(asked, turn)


class Took:
    """What engines have done since."""

    def __init__(self, **engines: Engine) -> None:
        self._engines = engines
        self._before = self._now()

    def prompts(self, **expected: Prompts) -> None:
        """Counters follow the answer."""
        found: Mapping[str, Prompts] = {}

        def all_right() -> bool:
            nonlocal found
            found = {name: self._now()[name][0] - self._before[name][0] for name in expected}
            return found == expected

        settles(all_right)
        assert found == expected

    def counted(self, name: str) -> Counted:
        return self._now()[name][1] - self._before[name][1]

    def _now(self) -> dict[str, tuple[Prompts, Counted]]:
        return {name: (Prompts.of(one), Counted.by(one)) for name, one in self._engines.items()}


@pytest.mark.parametrize(
    ("reader", "beyond"),
    [("p", 2), ("p", 3), ("p", 100), ("wide", 2), ("wide", 100)],
    ids=lambda it: it if isinstance(it, str) else f"{it} tokens more",
)
def test_prefill_computes_only_what_decode_does_not_have(
    reader: str, beyond: int, alone: Engine, lending: Lending, gateway: Gateway
) -> None:
    """With 2 tokens more, all that prefill is asked for is lent but its last token."""
    prefill = lending.readers[reader]
    lending.taken_by(prefill)
    turn = lending.second_turn(f"lent {beyond} to {reader}")[: LENT + beyond]
    took = Took(p=prefill, d=lending.decode)
    cached = (beyond - 1) // BLOCK * BLOCK

    answer = asked_of(gateway.url, turn).answer

    assert answer == asked_of(alone.url, turn).answer
    took.prompts(
        p=Prompts(computed=beyond - 1, transferred=LENT, cached=0),
        d=Prompts(computed=1, transferred=beyond - 1, cached=LENT),
    )
    read, came = took.counted("p"), took.counted("d")
    assert (read.transfers, read.failed, came.transfers, came.failed) == (1, 0, 1, 0)
    # Whole blocks: three were lent, and only those behind them came back.
    assert read.bytes / 3 * -(-(beyond - 1) // BLOCK) == came.bytes
    assert lending.is_free()
    # What was read is in prefill's cache, and right: all of its answer hangs on it.
    assert asked_of(prefill.url, turn).answer == answer
    took.prompts(p=Prompts(beyond - 1 + len(turn) - LENT - cached, LENT, LENT + cached))


def test_what_prefill_has_itself_is_not_read(
    alone: Engine, lending: Lending, gateway: Gateway
) -> None:
    lending.taken_by(lending.prefill)
    turn = lending.second_turn("both have it")
    asked_of(lending.prefill.url, turn[: 4 * BLOCK + 1])
    took = Took(p=lending.prefill)

    answer = asked_of(gateway.url, turn).answer

    assert answer == asked_of(alone.url, turn).answer
    took.prompts(
        p=Prompts(computed=len(turn) - 1 - 4 * BLOCK, transferred=0, cached=4 * BLOCK),
    )
    assert took.counted("p").transfers == 0


@pytest.mark.parametrize(
    ("reader", "fault"),
    [
        ("p", "nobody"),
        ("p", "another life"),
        ("p", "cut"),
        ("p", "called in"),
        ("wide", "cut"),
        ("wide", "called in"),
    ],
)
def test_what_cannot_be_read_is_computed(
    reader: str, fault: str, alone: Engine, lending: Lending, gateway: Gateway
) -> None:
    prefill = lending.readers[reader]
    lending.taken_by(prefill)
    turn = lending.second_turn(f"fault {fault} for {reader}")
    took = Took(p=prefill, d=lending.decode)

    with lending.wrong(fault):
        answer = asked_of(gateway.url, turn).answer

    assert answer == asked_of(alone.url, turn).answer
    took.prompts(
        p=Prompts(computed=len(turn) - 1, transferred=0, cached=0),
        d=Prompts(computed=1, transferred=len(turn) - 1 - LENT, cached=LENT),
    )
    assert (took.counted("p").failed, took.counted("d").failed) == (1, 0)
    assert lending.is_free()
    # Nor has prefill kept what it should not believe: a third turn is the single engine's as well.
    more = [*turn, *answer[0], *prompt(BLOCK, f"{fault} for {reader}, third turn")]
    assert asked_of(gateway.url, more).answer == asked_of(alone.url, more).answer


def test_tokens_show_whether_the_right_kv_was_read(
    alone: Engine, lending: Lending, gateway: Gateway
) -> None:
    """So the tests above would see it."""
    lending.taken_by(lending.prefill)
    turn = lending.second_turn("other blocks")

    with lending.wrong("other blocks"):
        asked_of(gateway.url, turn)

    said = asked_of(lending.prefill.url, turn)
    assert said.token_ids != asked_of(alone.url, turn).token_ids


def test_an_engine_whose_failed_loads_end_requests_reads_nothing(
    alone: Engine, lending: Lending, gateway: Gateway
) -> None:
    lending.taken_by(lending.strict)
    turn = lending.second_turn("strict")
    took = Took(strict=lending.strict)

    with lending.wrong("cut"):
        answer = asked_of(gateway.url, turn).answer

    assert answer == asked_of(alone.url, turn).answer
    took.prompts(strict=Prompts(computed=len(turn) - 1, transferred=0, cached=0))
    assert took.counted("strict").failed == 0


def test_a_decode_that_dies_while_it_is_read_from_leaves_no_page_taken(
    alone: Engine, lending: Lending, gateway: Gateway
) -> None:
    lending.taken_by(lending.prefill)
    turn = lending.second_turn("dies")
    took = Took(p=lending.prefill)

    with ThreadPoolExecutor(1) as beside, lending.wrong("held"):
        answer = beside.submit(asked_of, gateway.url, turn)
        assert settles(lambda: held_share(lending.prefill) > 0, START_SECONDS)
        lending.decode.process.signal(SIGKILL)
        # There is no other.
        with pytest.raises(APIError):
            answer.result()

    assert settles(lambda: held_share(lending.prefill) == 0, DEAD_SECONDS)
    assert answers_200(f"{lending.prefill.url}/health")
    assert took.counted("p").failed == 1
    assert asked_of(lending.prefill.url, turn).answer == asked_of(alone.url, turn).answer
