"""Engines that change sides with the load; without --adaptive there is none of this."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI

from pdgate.gateway.admin.board import Board, FileBoard
from pdgate.gateway.config import Settings
from pdgate.gateway.config.token import read_token
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.wiring import parts
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.roles import Roles
from pdgate.scheduling.surroundings import Targets

if TYPE_CHECKING:
    from pdgate.gateway.adaptive.adapting import Adapting

SMOOTH_PERIODS: Final = 3.0


class Adaptive:
    """
    Attributes:
        books: For /metrics.
        run: What is done all the time.
    """

    def __init__(self, adapting: "Adapting", instances: Instances) -> None:
        from pdgate.gateway.adaptive.books import RoleBooks

        self._adapting = adapting
        self._instances = instances
        self.books = RoleBooks(adapting, instances)
        self.run = adapting.run

    def administer(self, app: FastAPI, settings: Settings) -> None:
        """Shows it to operators, if there are any."""
        if settings.admin_token_file:
            from pdgate.gateway.adaptive.routes import routes

            token = read_token(settings.admin_token_file)
            app.include_router(routes(self._adapting, self._instances, token))


def adaptive_of(
    settings: Settings, instances: Instances, reload: Reload, folder: Path | None
) -> Adaptive | None:
    """`folder` is shared by the workers of this gateway, where there are several."""
    given = settings.adaptive
    if not given.enabled:
        return None
    from pdgate.gateway.adaptive.adapting import Adapting
    from pdgate.gateway.adaptive.sides import Sides

    def targets() -> Targets:
        section = reload.settings.targets
        return Targets(section.ttft_seconds, section.tpot_seconds)

    sides = Sides(instances, targets, time.monotonic)
    board = _board(settings, folder)
    roles = Roles(given.stay_seconds, SMOOTH_PERIODS * given.period_seconds)
    return Adaptive(Adapting(sides, roles, given.period_seconds, board), instances)


def _board(settings: Settings, folder: Path | None) -> Board | None:
    board = parts.board_of(settings, folder, "roles")
    if board is None and folder is not None:
        # Workers have to agree also where no operator can tell them anything.
        return FileBoard(folder / "roles.pinned")
    return board
