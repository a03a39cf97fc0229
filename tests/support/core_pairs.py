"""A prefill and a decode core with real connectors, and a gateway's legs sent to them.

Everything is real but HTTP: the forwarder writes the legs, the connectors read them, a
transfer backend moves the KV between regions of each side's own.
"""

import json
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from urllib.request import urlopen

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.core import EngineCore
from pdgate.engine.hand_over.lmcache import LMCacheHandOver
from pdgate.engine.hand_over.neuron import NeuronHandOver
from pdgate.engine.hand_over.registry import connect
from pdgate.engine.hand_over.settings import ConnectorSettings
from pdgate.engine.hand_over.store_mediated import StoreMediatedHandOver
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.layout import Layout
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.pace import StepPace
from pdgate.engine.ranks.connector import RanksConnector
from pdgate.engine.request import Output, Request, Sampling
from pdgate.engine.stats import EngineStats
from pdgate.engine.tensors import KvPlaces, registered
from pdgate.engine.work import Options
from pdgate.forwarders import registry as forwarders
from pdgate.forwarders.base import Delegation, Forwarder, HandOff, Leg, Mode, Rendezvous
from pdgate.protocols.call import COMPLETIONS, Call, encode, parse_object
from pdgate.protocols.dialects import tensorrt_llm
from pdgate.protocols.instance import Instance, Role
from pdgate.transfer.base import Backend, Region
from tests.support.engine_cores import GREEDY, Engine, ask, tiny
from tests.support.engine_pair import join
from tests.support.ports import LOOPBACK, free_port
from tests.support.waiting import PATIENCE_SECONDS


class Row(NamedTuple):
    protocol: str
    mode: Mode
    generation: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.protocol, self.generation, self.mode)))


ROWS = [
    Row("vllm-nixl", Mode.STAGED),
    Row("vllm-kvt", Mode.BATCH),
    Row("vllm-kvt", Mode.STAGED),
    *(Row("vllm-mooncake", Mode.BATCH, generation) for generation in "abcd"),
    Row("sglang", Mode.BATCH),
    Row("neuron", Mode.BATCH),
    Row("offload-p2p", Mode.BATCH),
    Row("tpu", Mode.STAGED),
    Row("mori-io", Mode.STAGED, "read"),
    Row("mori-io", Mode.BATCH, "write"),
    Row("lmdeploy", Mode.STAGED),
    Row("tensorrt-llm", Mode.STAGED, "context-first"),
    Row("tensorrt-llm", Mode.BATCH, "generation-first"),
]
"""Every protocol, in each spelling that makes the engines do something else."""


class Watched(EngineCore):
    """Says what its connector tells it."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.told: queue.Queue[str] = queue.Queue()

    def loaded(self, request_id: str, error: str | None = None, *more: Any, **named: Any) -> None:
        super().loaded(request_id, error, *more, **named)
        self.told.put("loaded")

    def gave_up(self, request_id: str, error: str) -> None:
        super().gave_up(request_id, error)
        self.told.put("gave up")

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self.told.put("release")

    def abort(self, request_id: str) -> None:
        super().abort(request_id)
        self.told.put("abort")


@dataclass
class Side:
    engine: Engine
    core: Watched
    connector: TwoSided | NeuronHandOver | StoreMediatedHandOver | LMCacheHandOver | RanksConnector
    api_port: int
    asked: "queue.Queue[str]" = field(default_factory=queue.Queue)
    """Which hooks the core has called; "peer" where the other side has asked for pages."""

    def __post_init__(self) -> None:
        kept, dropped = self.connector.kept, self.connector.dropped
        start = self.connector.start

        def watch_start(*words: Any) -> None:
            start(*words)
            self.asked.put("start")

        def watch_kept(*words: Any) -> Any:
            self.asked.put("kept")
            return kept(*words)

        def watch_dropped(*words: Any) -> Any:
            in_use = dropped(*words)
            self.asked.put("dropped in use" if in_use else "dropped")
            return in_use

        if isinstance(self.connector, TwoSided):
            self._watch_peers(self.connector)
        self.connector.start = watch_start  # type: ignore[method-assign, assignment]
        self.connector.kept = watch_kept  # type: ignore[method-assign, assignment]
        self.connector.dropped = watch_dropped  # type: ignore[method-assign, assignment]

    def _watch_peers(self, connector: TwoSided) -> None:
        """Says when decode has asked us for pages, however it does."""
        wait, ask_for_push = connector._offers.wait, connector._pushes.ask

        def watch_wait(*words: Any) -> Any:
            self.asked.put("peer")
            return wait(*words)

        def watch_ask(*words: Any) -> Any:
            push = ask_for_push(*words)
            self.asked.put("peer")
            return push

        connector._offers.wait = watch_wait  # type: ignore[method-assign, assignment]
        connector._pushes.ask = watch_ask  # type: ignore[method-assign, assignment]

    @property
    def port(self) -> int:
        return self.connector.kv_address[1]

    @property
    def stats(self) -> EngineStats:
        """What the core counts, when it has done all that it was told.

        Its peer's answer may come earlier: the last bytes leave before the turn that wrote them
        has ended.
        """
        with self.engine.resting():
            return self.core.stats

    def used(self) -> int:
        """Pages, when the core has done all that it was told."""
        self.engine.answer(ask("look", "x", replace(GREEDY, max_tokens=1)))
        # Its own page is free when the turn that answered has ended.
        with self.engine.resting():
            return self.core.gauges.blocks_used


def until(events: "queue.Queue[str]", wanted: str) -> None:
    while events.get(timeout=PATIENCE_SECONDS) != wanted:
        pass


def side(
    stack: ExitStack,
    role: str,
    protocol: str,
    backend: Backend,
    where: Layout,
    *,
    regions: Sequence[Region] = (),
    options: Options | None = None,
    pace: StepPace | None = None,
    model: LoadedModel | None = None,
    **settings: Any,
) -> Side:
    """A running engine that ends with the stack.

    `regions` are one per shard, new ones if there are none; the built-in model is computed unless
    there is another. Other `settings` are the connector's.
    """
    computes = model or tiny()
    if regions:
        memory = KvMemory(where, [region.memory for region in regions])
        kv = KvPlaces(regions, memory, lambda: None)
    else:
        kv = registered(where, backend, computes.tensors)
    made = Engine(memoryview(b""))
    made.core = core = Watched(computes, where, kv.memory, made.deliver, options, pace)
    chosen = ConnectorSettings(
        role=role,
        host=LOOPBACK,
        kv_host=LOOPBACK,
        **{
            "api_port": settings.get("api_port") or free_port(neighbours=1),
            "kv_port": 0,
            "lease_seconds": 30.0,
            "model": "tiny",
            "moment": kv.moment,
            **settings,
        },
    )
    connector = connect(
        protocol, core=core, layout=where, regions=kv.regions, backend=backend, settings=chosen
    )
    assert isinstance(
        connector, TwoSided | NeuronHandOver | StoreMediatedHandOver | LMCacheHandOver
    )
    stack.callback(connector.close)
    core.connect(connector)
    core.start()
    stack.callback(core.stop)
    return Side(made, core, connector, chosen.api_port)


def instances(
    prefill: Side, decode: Side, protocol: str, generation: str
) -> tuple[Instance, Instance]:
    """As a gateway knows them."""

    def instance(role: Role, at: Side) -> Instance:
        host, port = at.connector.kv_address
        return Instance(
            role.value,
            f"http://{LOOPBACK}:{at.api_port}",
            role,
            protocol,
            generation,
            kv=f"{host}:{port}",
            engine_ids=_engine_ids(at.connector, protocol),
        )

    return instance(Role.PREFILL, prefill), instance(Role.DECODE, decode)


def _engine_ids(
    connector: TwoSided | NeuronHandOver | StoreMediatedHandOver | LMCacheHandOver | RanksConnector,
    protocol: str,
) -> tuple[tuple[int, str], ...]:
    """As a gateway learns them; Neuron has no such thing."""
    if protocol == "vllm-mooncake" and isinstance(connector, RanksConnector):
        with urlopen("http://{}:{}/query".format(*connector.kv_address)) as answer:
            return tuple((int(dp), at["engine_id"]) for dp, at in json.load(answer).items())
    if info := connector.server_info():
        return ((0, tensorrt_llm.endpoint(encode(info))),)
    return ((0, connector.engine_id),) if isinstance(connector, TwoSided) else ()


class Crossing:
    """Sends calls through a pair as the forwarder says."""

    def __init__(self, row: Row, prefill: Side, decode: Side) -> None:
        self.prefill, self.decode = prefill, decode
        self._forwarder: Forwarder = forwarders.load(row.protocol, row.mode, row.generation)
        self._p, self._d = instances(prefill, decode, row.protocol, row.generation)
        if row.protocol == "lmdeploy":
            assert isinstance(prefill.connector, TwoSided)
            assert isinstance(decode.connector, TwoSided)
            join(prefill.connector, self._p.url, decode.connector)

    @property
    def serial(self) -> bool:
        return isinstance(self._forwarder, HandOff)

    def requests(
        self, prompt: str, sampling: Sampling, id: str = "c7-1"
    ) -> tuple[Request | None, Callable[[Output | None], Request]]:
        """What prefill is asked, if anything; and what decode is, which may hang on P's answer."""
        call = _call(prompt, sampling, id)
        match self._forwarder:
            case HandOff() as serial:

                def to_decode(last: Output | None) -> Request:
                    params = None if last is None else last.kv_transfer_params
                    choice = {"index": 0, "finish_reason": str(last.finish) if last else None}
                    asked = self.prefill.engine.core.model.tokenizer.encode(prompt)
                    said = self.prefill.connector.written({"choices": [choice]}, params, asked)
                    reply = parse_object(encode(said))
                    return request(serial.decode(call, self._p, self._d, reply), call, sampling)

                return request(serial.prefill(call, self._p), call, sampling), to_decode
            case Rendezvous() as forwarder:
                prefill, decode = (
                    request(leg, call, sampling) for leg in forwarder.legs(call, self._p, self._d)
                )
                return prefill, lambda _: decode
            case Delegation() as forwarder:
                only = request(forwarder.leg(call, self._p, self._d), call, sampling)
                return None, lambda _: only
        raise AssertionError(self._forwarder)

    def answer(
        self, prompt: str, sampling: Sampling, id: str = "c7-1", *, at_decode: str = ""
    ) -> list[Output]:
        """What decode answers; `at_decode`: what it is asked, where that is not prefill's prompt."""
        to_prefill, as_prefill = self.requests(prompt, sampling, id)

        def to_decode(last: Output | None) -> Request:
            asked = as_prefill(last)
            return replace(asked, prompt=ask("", at_decode).prompt) if at_decode else asked

        if to_prefill is None:
            return self.decode.engine.answer(to_decode(None))
        if self.serial:
            last = self.prefill.engine.answer(to_prefill)[-1]
            return self.decode.engine.answer(to_decode(last))
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.prefill.engine.answer, to_prefill)
            answer = self.decode.engine.answer(to_decode(None))
            assert first.result()[-1].refusal is None
        return answer


def _call(prompt: str, sampling: Sampling, id: str) -> Call:
    body = {"model": "tiny", "prompt": prompt, "max_tokens": sampling.max_tokens}
    return Call(id, id, COMPLETIONS, parse_object(encode(body)), model="tiny")


def request(leg: Leg, call: Call, sampling: Sampling) -> Request:
    """What an engine makes of a leg; `max_tokens` is the leg's."""
    body = json.loads(encode(leg.body))
    prompt = body["prompt"]
    asked = ask(
        f"{leg.to.id}-{call.attempt_id}",
        "" if isinstance(prompt, list) else prompt,
        replace(sampling, max_tokens=body["max_tokens"]),
        wire_id=leg.request_id or call.attempt_id,
        params=body.get("kv_transfer_params"),
        body=body,
    )
    return replace(asked, prompt=tuple(prompt)) if isinstance(prompt, list) else asked
