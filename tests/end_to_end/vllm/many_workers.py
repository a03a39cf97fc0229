"""Engines of several workers, each prefill and decode at once: a call that crosses between two of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from tests.end_to_end.vllm.asking import GREEDY, Said, client, complete, prompt
from tests.end_to_end.vllm.engines import BLOCK, Engine, Fleet, pdgate_over, ready
from tests.end_to_end.vllm.metrics import Counted, Prompts, held_share, settles
from tests.support.ports import LOOPBACK, free_port

PATIENT: Final = pdgate_over("tcp", lease_seconds=60.0)
"""Ten processes that spin on two cores take their time."""

LENGTH: Final = 4 * BLOCK + 3


class Engines:
    """None has a prefix cache: what one does not compute itself has come from its peer.

    The one called "one" is also what all are compared with.
    """

    def __init__(
        self, fleet: Fleet, stack: ExitStack, kinds: Mapping[str, Sequence[str]], name: str
    ) -> None:
        starting = {}
        self.kv_ports = {}
        for kind, flags in kinds.items():
            port, kv_port = free_port(), free_port()
            flag, said = PATIENT.flags("kv_both", port, kv_port)
            settings = {**json.loads(said), "kv_connector_module_path": "stages_on_cpu"}
            more = [flag, json.dumps(settings), *flags, "--no-enable-prefix-caching"]
            starting[kind] = fleet.start(stack, f"{name}-{kind}", port, more), port
            self.kv_ports[kind] = kv_port
        self.by_kind: dict[str, Engine] = {
            kind: ready(process, port) for kind, (process, port) in starting.items()
        }
        # The first call of an engine takes seconds.
        for engine in self.by_kind.values():
            with client(engine.url) as direct:
                complete(direct, prompt(BLOCK, "warm"), max_tokens=4)

    def at(self, kind: str) -> dict[str, Any]:
        return {"remote_host": LOOPBACK, "remote_port": self.kv_ports[kind]}

    def alone(self, tokens: list[int]) -> list[int]:
        with client(self.by_kind["one"].url) as direct:
            return complete(direct, tokens).token_ids

    def hold_nothing(self) -> None:
        for kind, engine in self.by_kind.items():
            assert settles(lambda engine=engine: held_share(engine) == 0), kind  # type: ignore[misc]


def ask(engine: Engine, tokens: list[int], params: Mapping[str, Any]) -> Said:
    extra = {**GREEDY["extra_body"], "kv_transfer_params": params}
    with client(engine.url) as direct:
        return complete(direct, tokens, extra_body=extra)


def whole(engines: Engines, salt: str) -> tuple[list[int], list[int]]:
    """A prompt, and what the single engine says to it."""
    tokens = prompt(LENGTH, salt)
    return tokens, engines.alone(tokens)


def begun(engines: Engines, salt: str) -> tuple[list[int], list[int]]:
    """A prompt whose last token the single engine has said itself: it has computed that by the kernel that decodes, too,
    as decode does with the last token of what it is handed.
    """
    tokens = prompt(LENGTH - 1, salt)
    first, *more = engines.alone(tokens)
    return [*tokens, first], more


def crosses(
    engines: Engines,
    pair: tuple[str, str],
    way: str,
    moved_bytes: int,
    question: Callable[[Engines, str], tuple[list[int], list[int]]] = whole,
) -> None:
    """The answer is that of one engine, D computed one prompt token, and nothing is left behind.

    `way`: "delegated", layer by layer, as D asks P; "read", as P answers where its blocks are.
    """
    prefill, decode = (engines.by_kind[kind] for kind in pair)
    tokens, expected = question(engines, f"workers {pair} {way}")
    before, counted = Prompts.of(decode), Counted.by(decode)
    params: Mapping[str, Any] = engines.at(pair[0])
    if way == "read":
        with client(prefill.url) as direct:
            asked = {"do_remote_decode": True, "do_remote_prefill": False}
            answer = direct.completions.create(
                model=GREEDY["model"],
                prompt=tokens,
                max_tokens=1,
                temperature=0,
                extra_body={"kv_transfer_params": asked},
            )
        params = (answer.model_extra or {})["kv_transfer_params"]

    said = ask(decode, tokens, params)

    assert said.token_ids[: len(expected)] == expected
    assert settles(lambda: (Prompts.of(decode) - before).computed == 1)
    assert (Prompts.of(decode) - before).transferred == LENGTH - 1
    moved = Counted.by(decode) - counted
    assert (moved.bytes, moved.transfers, moved.failed) == (moved_bytes, 1, 0)
    engines.hold_nothing()
