"""Findings, by what was seen. Pure.

alone      one engine by itself
together   prefill and decode beside each other
arrivals   where KV is fetched, and whether it arrives
"""

from pdgate.operations.doctor.checks import CANNOT_START, GATEWAY_SAYS, Finding, in_order
from pdgate.operations.doctor.rules import alone, arrivals, together
from pdgate.operations.doctor.seen import Examined


def findings(examined: Examined) -> list[Finding]:
    """The worst first."""
    gatewise = (
        Finding(
            GATEWAY_SAYS, (one.instance,), f"{one.state}: {one.hint}" if one.hint else one.state
        )
        for one in examined.gatewise
        if one.state != "up" or one.cause
    )
    unfit = (
        Finding(CANNOT_START, (command,), why)
        for command, reasons in examined.starts.items()
        for why in reasons
    )
    return in_order(
        [
            *alone.findings(examined),
            *together.findings(examined),
            *arrivals.findings(examined),
            *gatewise,
            *unfit,
        ]
    )
