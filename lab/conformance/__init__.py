"""`pdgate conformance`: what every protocol must do, asked of a real gateway and real engines.

    asked.py        what is to be checked, and whether it can be
    bench.py        starts reference engines and a gateway in front of them
    site.py         what a check sees: the gateway, the engines, one that works alone
    api.py          one HTTP API, asked; answer.py reads what it says, whole or streamed
    metrics.py      what an engine tells of itself
    check.py        a check: its id, its sentence, its verdict
    checks/         the checks, by what they are about
    running.py      all of them, one after the other
    report.py       as a table, as JSON, as JUnit's XML
    cli.py          the command

For tests of a package with a forwarder of its own:

    from pdgate.lab.conformance import Wanted, run

    report = run(Wanted("brook", engine_protocol="vllm-nixl"))
    assert not report.failed, report.failed
"""

from pdgate.lab.conformance.asked import BadWish, Wanted
from pdgate.lab.conformance.check import Check, Result, Verdict
from pdgate.lab.conformance.checks import CHECKS
from pdgate.lab.conformance.report import Report
from pdgate.lab.conformance.running import run, run_async
from pdgate.lab.processes import ProcessFailed

__all__ = [
    "CHECKS",
    "BadWish",
    "Check",
    "ProcessFailed",
    "Report",
    "Result",
    "Verdict",
    "Wanted",
    "run",
    "run_async",
]
