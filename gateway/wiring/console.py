"""The console, for who has an admin token; without one there is none of this."""

from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import FastAPI

from pdgate.forwarders.ownership import KvLedger
from pdgate.gateway.config import Settings
from pdgate.gateway.config.token import read_token
from pdgate.gateway.debug import RecentCalls
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.metrics.books import Books
from pdgate.gateway.wiring.background import Job
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    from pdgate.gateway.console.attention import Attention
    from pdgate.gateway.console.cards import More


def attention_of(settings: Settings, scheduler: Scheduler, recent: RecentCalls) -> "Attention":
    """The scheduler tells why it chose whom, for as long as somebody watches."""
    from pdgate.gateway.console.attention import Attention

    def begins() -> None:
        scheduler.told = recent.chose

    def ends() -> None:
        scheduler.told = recent.chose if settings.debug_routes else None

    ends()
    return Attention(begins, ends)


def has_console(settings: Settings) -> bool:
    return settings.console and bool(settings.admin_token_file)


class Console:
    """
    Attributes:
        jobs: What is done all the time.
    """

    def __init__(
        self,
        instances: Instances,
        recent: RecentCalls,
        books: Books,
        ledger: KvLedger,
        more: "More",
        drain: Drain,
        attention: "Attention",
        folder: Path | None,
    ) -> None:
        from pdgate.gateway.console.part import OwnPart
        from pdgate.gateway.console.pulse import Pulse
        from pdgate.gateway.console.snapshots import Snapshots

        pulse = Pulse(books.collect)
        own = OwnPart(recent, ledger, pulse, lambda: books.in_flight, attention)
        self._snapshots = Snapshots(instances, own, more, drain, folder)
        run = self._snapshots.run
        self.jobs: list[Job] = [pulse.run, attention.run, *([run] if run else [])]

    def administer(self, app: FastAPI, settings: Settings) -> None:
        from pdgate.gateway.admin.live import routes
        from pdgate.gateway.console import page

        app.include_router(routes(self._snapshots, read_token(settings.admin_token_file)))
        app.include_router(page.routes())
