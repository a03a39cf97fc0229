"""Run of the checks one after the other, against one site."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

import httpx2

from pdgate.forwarders.base import Mode
from pdgate.lab.conformance.answer import MalformedAnswer
from pdgate.lab.conformance.api import ApiRefused
from pdgate.lab.conformance.asked import Wanted, preferred
from pdgate.lab.conformance.bench import Bench
from pdgate.lab.conformance.check import Broken, Check, NotApplicable, Result, Verdict
from pdgate.lab.conformance.checks import CHECKS
from pdgate.lab.conformance.report import Report
from pdgate.lab.conformance.site import Site
from pdgate.lab.processes import ProcessFailed

CHECK_SECONDS = 120.0


def unwatched(_: Check | None, __: int, ___: int) -> None:
    """Progress for a caller that does not want to see it."""


Progress = Callable[[Check | None, int, int], None]
"""Called with the check that begins (None: engines start), how many are over, and of how many."""


def run(wanted: Wanted, progress: Progress = unwatched) -> Report:
    """Raises BadWish, ProcessFailed."""
    return asyncio.run(run_async(wanted, progress))


async def run_async(wanted: Wanted, progress: Progress = unwatched) -> Report:
    """Raises BadWish, ProcessFailed."""
    wanted.check([one.id for one in CHECKS])
    forwarder = wanted.forwarder()
    mode = Mode(wanted.mode) if wanted.mode else preferred(wanted.protocol, wanted.generation)
    checks = [one for one in CHECKS if not wanted.checks or one.id in wanted.checks]
    progress(None, 0, len(checks))
    results: list[Result] = []
    async with Bench(wanted, forwarder, mode).site() as site:
        for one in checks:
            progress(one, len(results), len(checks))
            results.append(await judged(one, site))
    progress(None, len(results), len(checks))
    return Report(wanted.protocol, mode.value, wanted.generation, tuple(results))


async def judged(one: Check, site: Site) -> Result:
    began = monotonic()
    verdict, reason = await _verdict(one, site)
    return Result(one, verdict, reason, monotonic() - began)


async def _verdict(one: Check, site: Site) -> tuple[Verdict, str]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await one.run(site)
    except NotApplicable as why:
        return Verdict.NOT_APPLICABLE, str(why)
    except TimeoutError:
        return Verdict.FAIL, f"it was not over after {CHECK_SECONDS:.0f} s"
    except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001
        # Whatever an API says that cannot be read is the finding, and the other checks go on.
        return Verdict.FAIL, "; ".join(_sentences(error))
    return Verdict.PASS, ""


def _sentences(error: BaseException) -> Sequence[str]:
    if isinstance(error, BaseExceptionGroup):
        return [sentence for one in error.exceptions for sentence in _sentences(one)]
    if isinstance(error, (Broken, MalformedAnswer, ProcessFailed, ApiRefused)):
        return [str(error)]
    if isinstance(error, httpx2.HTTPError):
        return [f"{_asked(error)} does not answer: {type(error).__name__} {error}".rstrip()]
    return [f"what was answered cannot be read: {type(error).__name__}: {error}"]


def _asked(error: httpx2.HTTPError) -> str:
    try:
        url = error.request.url
    except RuntimeError:
        # It failed before there was one.
        return "what was asked"
    return f"{url.scheme}://{url.netloc.decode()}"
