"""What it takes to choose engines for a call, by policy and by how many engines there are.

    python -m benchmarks.scheduling [--kilobytes N] [--json FILE] [--policy NAME ...] [--calls N]

Fleets of 8 and of 1,000 engines, half prefill and half decode, busy by chance, whose speeds are
known. Prompts go on from conversations that some engine has, behind system prompts that all have.
Timed is all that a call pays for being placed: `reserve` of the real scheduler, in which prompts are
hashed, looked up, chosen for, and learnt from. Of the wall, without calls during which the kernel gave
the core to somebody else: the last column says how many those were.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter_ns
from typing import Final

from pdgate.protocols import plugins
from pdgate.protocols.call import CHAT, Call, encode, parse_object
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import load
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.scheduler import Scheduler
from pdgate.scheduling.status import Beyond

FLEETS: Final = (8, 1000)
KILOBYTES: Final = 128
SYSTEM_SHARE: Final = 1 / 16
KNOWN_SHARE: Final = 1 / 2
CONVERSATIONS: Final = 200
CALLS: Final = 1000
MODEL: Final = "m"
KV_TOKENS: Final = 400_000
SHARES: Final = (0.5, 0.9, 0.99)


def call_of(*texts: str) -> Call:
    messages = [{"role": "user", "content": text} for text in texts]
    body = parse_object(encode({"model": MODEL, "messages": messages}))
    tokens = sum(map(len, texts)) // 4
    return Call("c", "c-1", CHAT, body, model=MODEL, streams=True, prompt_tokens=tokens)


class Conversations:
    def __init__(self, random: Random, kilobytes: int) -> None:
        """`kilobytes`: of a prompt."""
        self._random = random
        whole = kilobytes << 10
        system, known = int(whole * SYSTEM_SHARE), int(whole * KNOWN_SHARE)
        self._rest = whole - system - known
        self.systems = [self._said(system) for _ in range(4)]
        self.known = [
            (random.choice(self.systems), self._said(known)) for _ in range(CONVERSATIONS)
        ]

    def _said(self, count: int) -> str:
        return self._random.randbytes(count // 2).hex()

    def turn(self) -> Call:
        system, known = self._random.choice(self.known)
        return call_of(system, known, self._said(self._rest))


def fleet(count: int, random: Random) -> Endpoints:
    """Busy, and known: what they hold, and how fast they read and answer."""
    endpoints = Endpoints()
    for number in range(count):
        role = Role.DECODE if number % 2 else Role.PREFILL
        name = f"engine-{number}"
        one = endpoints.put(Instance(name, f"http://{name}:8000", role, "vllm-nixl", model=MODEL))
        endpoints.mark_up(name, (MODEL,))
        one.calls = random.randrange(1, 20)
        one.tokens = one.calls * random.randrange(200, 800)
        one.unread_tokens = one.tokens if role is Role.PREFILL else 0
        one.beyond = Beyond(kv_capacity=KV_TOKENS)
        for tokens in (1000, 2000, 4000, 8000):
            one.latency.prefill_rate.learn(tokens, tokens / random.uniform(8_000, 12_000))
        for steps in range(20):
            one.latency.step_time.learn(8, steps, 8 * 0.02)
    return endpoints


def taught(endpoints: Endpoints, said: Conversations, random: Random) -> PrefixIndex:
    """All have the system prompts, and a few each of the conversations."""
    index, names = PrefixIndex(), [one.instance.id for one in endpoints]
    systems = [call_of(system, "") for system in said.systems]
    for name in names:
        for call in systems:
            index.routed(call, name)
    for system, known in said.known:
        call = call_of(system, known)
        for name in random.sample(names, 3):
            index.routed(call, name)
    return index


def timed(policy: str, count: int, calls: int, kilobytes: int) -> dict[str, list[int]]:
    """Role -> nanoseconds for each call that was not interrupted."""
    random = Random(count)
    endpoints, said = fleet(count, random), Conversations(random, kilobytes)
    index = taught(endpoints, said, random)
    prefill, decode, plain = (
        load(policy, PolicyContext(role, index, random=random))
        for role in (Role.PREFILL, Role.DECODE, Role.PLAIN)
    )
    scheduler = Scheduler(endpoints, prefill, decode, plain, prefixes=index)
    taken: dict[str, list[int]] = {"prefill": [], "decode": []}
    for _ in range(calls):
        call = said.turn()
        interrupted = getrusage(RUSAGE_THREAD).ru_nivcsw
        began = perf_counter_ns()
        first = scheduler.reserve(Role.PREFILL, call)
        chosen = perf_counter_ns()
        second = scheduler.reserve(Role.DECODE, call, peer=first.instance)
        ended = perf_counter_ns()
        if getrusage(RUSAGE_THREAD).ru_nivcsw == interrupted:
            taken["decode"].append(ended - chosen)
            taken["prefill"].append(chosen - began)
        second.end()
        first.end()
    return taken


def microseconds(taken: Sequence[int]) -> list[float]:
    ordered = sorted(taken)
    return [ordered[int(share * (len(ordered) - 1))] / 1000 for share in SHARES]


def figures(policies: Sequence[str], calls: int, kilobytes: int) -> Iterator[dict[str, object]]:
    for count in FLEETS:
        for policy in policies:
            for role, taken in timed(policy, count, calls, kilobytes).items():
                p50, p90, p99 = microseconds(taken)
                yield {
                    "engines": count, "policy": policy, "role": role,
                    "p50_us": p50, "p90_us": p90, "p99_us": p99,
                    "interrupted": calls - len(taken),
                }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling")
    parser.add_argument("--kilobytes", type=int, default=KILOBYTES, help="of a prompt")
    parser.add_argument("--json", type=Path, help="where the figures go as well")
    parser.add_argument("--policy", action="append", help="only this one; repeatable")
    parser.add_argument("--calls", type=int, default=CALLS)
    given = parser.parse_args()

    policies = given.policy or plugins.names(plugins.POLICIES)
    print("| engines | policy | role | p50, µs | p90, µs | p99, µs | interrupted |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for one in figures(policies, given.calls, given.kilobytes):
        found.append(one)
        times = " | ".join(f"{one[share]:,.0f}" for share in ("p50_us", "p90_us", "p99_us"))
        called = f"{one['engines']:,} | {one['policy']} | {one['role']}"
        print(f"| {called} | {times} | {one['interrupted']} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
