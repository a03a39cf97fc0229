"""Metrics of each component: values of the declared families, when they are asked for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Final, Protocol

from pdgate.cluster.jobs import Jobs
from pdgate.cluster.stderr import lines_dropped
from pdgate.forwarders.execution import Execution
from pdgate.forwarders.kv_lease import KvLedger
from pdgate.forwarders.lives import Lives
from pdgate.gateway.admission.gate import Gate
from pdgate.gateway.callbacks.words import Words
from pdgate.gateway.front.crowd import Crowd
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.call_stats import OTHER
from pdgate.gateway.metrics.family import Key, Samples, Source
from pdgate.gateway.metrics.zero_values import KEY_REFUSALS
from pdgate.gateway.probe import Prober
from pdgate.gateway.realtime.sessions import Sessions
from pdgate.gateway.security.authenticator import Authenticator
from pdgate.gateway.upstream.client import HttpUpstream
from pdgate.gateway.watchdog import ELSEWHERE, Watchdog
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix.index import PrefixIndex
from pdgate.scheduling.roles import SIDES

if TYPE_CHECKING:
    from pdgate.gateway.adaptive.adapting import Adapting
    from pdgate.gateway.batch.runner import Runner
    from pdgate.gateway.control.control import Control
    from pdgate.gateway.control.holds import Holds

MOST_KEYS: Final = 256
"""That have metrics of their tokens each."""


def together(*sources: Source) -> Source:
    """All of them as one, in their order."""
    return lambda: chain.from_iterable(source() for source in sources)


def health(endpoints: Endpoints) -> Iterator[Samples]:
    states = (((*_engine(one.instance), one.state), 1.0) for one in endpoints)
    yield families.INSTANCE_STATE.samples(states)
    ejections = _by_engine((one.instance, one.ejections) for one in endpoints)
    yield families.INSTANCE_EJECTIONS.samples(ejections, endpoints)


def lifecycle(drain: Drain, reload: Reload) -> Iterator[Samples]:
    yield families.DRAINING.sample(float(drain.began is not None))
    yield families.RELOADS.samples(reload.results.items())


def background(jobs: Jobs) -> Iterator[Samples]:
    yield families.JOB_RUNNING.samples((job.name, float(job.running)) for job in jobs)
    yield families.JOB_RESTARTS.samples((job.name, job.restarts) for job in jobs)


def process(watchdog: Watchdog) -> Iterator[Samples]:
    yield families.LOG_LINES_DROPPED.sample(lines_dropped())
    # A copy: the watchdog's thread counts.
    yield families.SLOW_CALLBACKS.samples({ELSEWHERE: 0, **dict(watchdog.slow)}.items())


def memory(crowd: Crowd) -> Iterator[Samples]:
    yield families.OUT_OF_MEMORY.samples([("refused", crowd.refused), ("cut", crowd.cut)])


def liveness(endpoints: Endpoints, upstream: HttpUpstream, prober: Prober) -> Iterator[Samples]:
    given_up = _by_engine((one.instance, one.given_up) for one in endpoints)
    yield families.LEGS_GIVEN_UP.samples(given_up, endpoints)
    yield families.GATEWAY_SHORT.samples([("calls", upstream.short), ("looks", prober.short)])


def kv(ledger: KvLedger, lives: Lives, fleet: Iterable[Endpoint]) -> Iterator[Samples]:
    """Samples of where the KV of split calls is, as far as this process knows. Ages are looked at when asked."""
    yield families.KV_HELD.sample(ledger.held)
    yield families.KV_STRANDED.samples(ledger.stranded().items())
    yield families.KV_STRANDINGS.samples(ledger.strandings.items(), fleet)
    yield families.PINNED_ENGINE_ID.samples((name, 1.0) for name in sorted(lives.pinned))


def read_back(execution: Execution) -> Iterator[Samples]:
    """Samples of reading back; none where it is off."""
    known = execution.read_back
    if known is not None:
        yield families.READ_BACKS.samples(((outcome,), n) for outcome, n in known.outcomes.items())
        yield families.READ_BACK_TURNS.sample(len(known.turns))


def policies(passed_over: Mapping[tuple[Role, str], Counter[str]]) -> Iterator[Samples]:
    """`passed_over`: role and name of a policy -> condition -> how often it would have left no engine."""
    yield families.POLICY_PASSED_OVER.samples(
        ((role.value, policy, condition), times)
        for (role, policy), conditions in passed_over.items()
        for condition, times in conditions.items()
    )


def predictions(endpoints: Iterable[Endpoint]) -> Iterator[Samples]:
    """Means of the last fifty or so: of seconds until a prompt was read, and between tokens."""
    compared = [
        ((one.instance.id, of), accuracy)
        for one in endpoints
        for of, accuracy in (
            ("prefill", one.latency.prefill_accuracy),
            ("step", one.latency.step_time.accuracy),
        )
        if accuracy.compared
    ]
    yield families.PREDICTION_ERROR.samples((key, found.error) for key, found in compared)
    yield families.PREDICTION_BIAS.samples((key, found.bias) for key, found in compared)
    yield families.PREDICTIONS.samples((key, found.compared) for key, found in compared)


def prefixes(index: PrefixIndex) -> Iterator[Samples]:
    cached = index.cached_tokens
    expected = ("cached", cached), ("uncached", index.read_tokens - cached)
    yield families.PROMPT_TOKENS.samples(expected)
    yield families.PREFIX_INDEX_BYTES.sample(index.bytes)
    yield families.PREFIX_INDEX_BLOCKS.sample(index.blocks)
    yield families.PREFIX_INDEX_EVICTED_BLOCKS.sample(index.evictions)


def keys(authenticator: Authenticator) -> Iterator[Samples]:
    """Samples of keys, a label value for each, and of signed tokens together, whose tenants come and go."""
    key_states = authenticator.key_states.items()
    yield families.KEY_CALLS.samples((name, key_state.calls) for name, key_state in key_states)
    yield families.KEY_CALLS_IN_FLIGHT.samples(
        (name, key_state.running) for name, key_state in key_states
    )
    zeros = dict.fromkeys(KEY_REFUSALS, 0)
    yield families.KEY_CALLS_REFUSED.samples(
        ((name, reason), count)
        for name, key_state in key_states
        for reason, count in {**zeros, **key_state.refused}.items()
    )
    yield families.KEY_TOKENS.samples(_key_tokens(authenticator))


def _key_tokens(authenticator: Authenticator) -> Iterator[tuple[Key, int]]:
    """Of the first keys each, and of all others and of tenants of tokens together."""
    others = Counter(() if authenticator.tokens is None else authenticator.tokens.gone)
    for at, key_state in enumerate(authenticator.states()):
        found = {
            "prompt": key_state.prompt,
            "cached": key_state.cached,
            "generated": key_state.generated,
        }
        if at < MOST_KEYS and key_state.name in authenticator.key_states:
            yield from (((key_state.name, kind), tokens) for kind, tokens in found.items())
        else:
            others.update(found)
    yield from (((OTHER, kind), tokens) for kind, tokens in others.items())


def admission(gate: Gate) -> Iterator[Samples]:
    """How long calls waited is a stage of pdgate_stage_seconds."""
    yield families.CALLS_WAITING.samples(gate.waiting())
    yield families.CALLS_TURNED_AWAY.samples(gate.refused.items())
    if gate.giving_way is not None:
        yield families.CALLS_GAVE_WAY.samples(gate.giving_way.gave_way.items())


def control(holds: "Holds", found: "Control") -> Iterator[Samples]:
    yield families.CALLS_HELD.sample(sum(holds.waiting.values()))
    yield families.CALLS_HELD_IN_VAIN.sample(holds.refused)
    yield families.CONTROL_REQUESTS.samples(found.done.items())


def batches(runner: "Runner") -> Iterator[Samples]:
    """Lines are calls as well, and counted as such."""
    if runner.leads:
        yield families.BATCHES.samples(
            (status.value, count) for status, count in runner.statuses.items()
        )
    yield families.BATCH_LINES.samples(runner.serving.lines.items())


def realtime(sessions: Sessions) -> Iterator[Samples]:
    yield families.REALTIME_SESSIONS.sample(sessions.open)
    yield families.REALTIME_SESSIONS_ENDED.samples(sessions.ended.items())
    yield families.REALTIME_BYTES.samples(sessions.bytes.items())


def callbacks(words: Words) -> Iterator[Samples]:
    yield families.CALLBACKS.samples(
        ((result.value,), count) for result, count in words.counts.items()
    )


def roles(adapting: "Adapting", endpoints: Iterable[Endpoint]) -> Iterator[Samples]:
    from pdgate.gateway.adaptive.sides import group_name

    yield families.INSTANCE_SIDE.samples(
        ((one.instance.id, adapting.sides.of(one)), 1.0)
        for one in endpoints
        if one.instance.role is Role.BOTH
    )
    yield families.SIDE_PRESSURE.samples(
        ((group_name(group), side.value), adapting.roles.pressure(group, side).now)
        for group in adapting.roles.groups()
        for side in SIDES
    )
    yield families.ROLE_CHANGES.samples(adapting.counted.items(), endpoints)


class Traced(Protocol):
    """Traces: that the collector took, that it did not take, that found the line full."""

    sent: int
    lost: int
    dropped: int


def traces(traced: Traced) -> Iterator[Samples]:
    results = ("sent", traced.sent), ("lost", traced.lost), ("dropped", traced.dropped)
    yield families.TRACES.samples(results)


def _engine(instance: Instance) -> tuple[str, str]:
    return instance.id, instance.role.value


def _by_engine(
    counted: Iterable[tuple[Instance, Mapping[str, int]]],
) -> Iterator[tuple[Key, int]]:
    for instance, counts in counted:
        for why, times in counts.items():
            yield (*_engine(instance), why), times
