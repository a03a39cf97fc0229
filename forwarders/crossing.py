"""Four ways to cross two engines, one function each: the order of the legs, and what ends what.

    hand_off      prefill, then decode, both chosen before
    staged        prefill, then decode, which is chosen when prefill has answered
    rendezvous    both at once; a failed prefill ends decode's leg
    delegate      decode alone, which asks prefill itself

A failed prefill must end decode's leg: Mooncake's decode, for one, would wait minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable

from pdgate.forwarders.attempt import Attempt, Deliver
from pdgate.forwarders.base import (
    Answer,
    Delegation,
    Forwarder,
    HandOff,
    Leg,
    Rendezvous,
    Reserved,
)
from pdgate.forwarders.merged import Merging
from pdgate.forwarders.record import Record
from pdgate.forwarders.ungrouped import ungrouped
from pdgate.protocols.call import Json
from pdgate.protocols.errors import EngineRefused, GatewayError
from pdgate.protocols.instance import DECODE, Instance
from pdgate.scheduling.watch import Watch

Cross = Callable[..., Awaitable[None]]
"""Forwarder, attempt, prefill and decode, both reserved."""


def way_across(forwarder: Forwarder) -> Cross:
    """One that raises TypeError if the forwarder has no way to cross two engines."""
    match forwarder:
        case HandOff():
            return hand_off
        case Rendezvous():
            return rendezvous
        case Delegation():
            return delegate
    return nowhere


async def nowhere(
    forwarder: Forwarder, attempt: Attempt, prefill: Reserved, decode: Reserved
) -> None:
    raise TypeError(f"{forwarder.name} has no way to cross two engines")


async def hand_off(
    forwarder: HandOff, attempt: Attempt, prefill: Reserved, decode: Reserved
) -> None:
    call = attempt.call
    reply = await attempt.ask_prefill(forwarder.prefill(call, prefill.instance), prefill)
    leg = _decode_leg(forwarder, attempt, prefill.instance, decode.instance, reply)
    await attempt.answer(leg, DECODE, decode, loads=True)


async def staged(forwarder: Forwarder, attempt: Attempt, prefill: Reserved) -> None:
    if not isinstance(forwarder, HandOff):
        raise TypeError(f"{forwarder.name} cannot choose decode after prefill")
    call = attempt.call
    reply = await attempt.ask_prefill(forwarder.prefill(call, prefill.instance), prefill)
    while True:
        with attempt.reserve(DECODE, prefill.instance) as decode:
            leg = _decode_leg(forwarder, attempt, prefill.instance, decode.instance, reply)
            try:
                await attempt.answer(leg, DECODE, decode, loads=True)
                return
            except EngineRefused as error:
                # Nothing was sent, so the KV is still there for another decode engine.
                attempt.tried.note(error)
                if attempt.kv is not None:
                    attempt.kv.decode_refused()


async def rendezvous(
    forwarder: Rendezvous, attempt: Attempt, prefill: Reserved, decode: Reserved
) -> None:
    call = attempt.call
    to_prefill, to_decode = forwarder.legs(call, prefill.instance, decode.instance)
    with ungrouped():
        async with asyncio.TaskGroup() as together:
            prefilling = together.create_task(_watch_prefill(attempt, to_prefill, prefill))
            merge = forwarder.merge(call, to_prefill, to_decode)
            await attempt.answer(
                to_decode,
                DECODE,
                decode,
                begun=lambda _: decode.has_loaded(attempt.record.since_prefill()),
                deliver=_unless_failed(prefilling, attempt.deliver),
                merging=None if merge is None else Merging(merge, prefilling),
            )
            # Decode has all it needed; what prefill still says is of no use.
            prefilling.cancel()


async def delegate(
    forwarder: Delegation, attempt: Attempt, prefill: Reserved, decode: Reserved
) -> None:
    def begun(seconds: float) -> Watch | None:
        # Nobody here can tell prefill's part of that time from decode's.
        prefill.has_read(seconds)
        prefill.end()
        return decode.has_loaded(0.0)

    leg = forwarder.leg(attempt.call, prefill.instance, decode.instance)
    await attempt.answer(leg, DECODE, decode, begun=begun)


async def _watch_prefill(attempt: Attempt, leg: Leg, reserved: Reserved) -> Json:
    """Prefill's reply. Its failure ends decode's leg, unless decode answers already."""
    try:
        return await attempt.ask_prefill(leg, reserved)
    except GatewayError:
        if not attempt.record.is_answering:
            raise
        return {}
    finally:
        reserved.end()


def _decode_leg(
    forwarder: HandOff, attempt: Attempt, prefill: Instance, decode: Instance, reply: Json
) -> Leg:
    attempt.lives.answered(prefill.id, forwarder, reply)
    try:
        return forwarder.decode(attempt.call, prefill, decode, reply)
    except GatewayError as error:
        # It was prefill's answer that was of no use.
        error.at = error.at or prefill.id
        raise


def _unless_failed(prefilling: asyncio.Task[Json], deliver: Deliver) -> Deliver:
    """Delivers unless prefill has failed by now.

    Its group would say so only in the next turn of the event loop, by cancelling us; the
    first byte would be out by then, and no other engine could be asked.
    """

    async def deliver_(answer: Answer, record: Record) -> None:
        if prefilling.done():
            prefilling.result()
        await deliver(answer, record)

    return deliver_
