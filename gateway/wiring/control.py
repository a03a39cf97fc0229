"""Wiring of what operators change of engines: which get calls, what is added, and the control of all of a model's.

Parts that only a gateway with control has are imported where they are made.
"""

from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter

from pdgate.gateway.component import Component, GatewayCore
from pdgate.gateway.config import Settings
from pdgate.gateway.service import Service
from pdgate.gateway.sync.shared_setting import SharedSetting
from pdgate.gateway.sync.shared_store import FileStore, RedisStore, SharedStore
from pdgate.gateway.wiring import metrics

if TYPE_CHECKING:
    from pdgate.gateway.control.control import Control

SHARED_KEYS: Final = "pdgate"
"""Prefix in Redis of what all gateways that use the same database share."""


def store_of(settings: Settings, folder: Path | None, name: str) -> SharedStore | None:
    """`folder` is shared by the workers of this gateway, where there are several."""
    if settings.redis:
        return RedisStore(settings.redis, f"{SHARED_KEYS}:{name}")
    if folder is not None and settings.admin_token_file:
        return FileStore(folder / f"{name}.pinned")
    return None


class OutOfUse:
    """Engines that get no calls: those that operators drain, and those that an update has left out."""

    def __init__(self, core: GatewayCore) -> None:
        self._endpoints = core.endpoints
        self._drained: Collection[str] = ()
        self._left_out: Collection[str] = ()

    def drain(self, ids: Collection[str]) -> None:
        self._drained = ids
        self._endpoints.drain((*self._drained, *self._left_out))

    def leave_out(self, ids: Collection[str]) -> None:
        if set(ids) != set(self._left_out):
            self._left_out = ids
            self._endpoints.drain((*self._drained, *self._left_out))


def control_of(
    core: GatewayCore, service: Service, out: OutOfUse
) -> "tuple[Control, Component] | tuple[None, None]":
    """Engines that are paused, get other weights, and sleep, by routes of the admin API."""
    given = core.settings.control
    if not given.enabled or not core.settings.admin_token_file:
        return None, None
    from pdgate.gateway.admin.workers import Registered, WorkerEntries
    from pdgate.gateway.control.board import AloneBoard, ControlBoard, FolderBoard
    from pdgate.gateway.control.control import Control
    from pdgate.gateway.control.following import Following
    from pdgate.gateway.control.holds import Holds

    board: ControlBoard
    if core.settings.redis:
        from pdgate.gateway.control.redis_board import RedisBoard

        board = RedisBoard(core.settings.redis)
    elif core.load_folder is not None:
        board = FolderBoard(core.load_folder)
    else:
        board = AloneBoard()
    holds = Holds(core.endpoints.meant, given.wait_seconds, given.waiting)
    following = Following(
        board,
        holds,
        core.endpoints,
        core.index,
        core.prober,
        out.leave_out,
        lease=bool(core.settings.redis),
    )
    service.holds = holds
    found = Control(
        core.endpoints, core.access, board, following, given.engine_seconds, given.quiet_seconds
    )
    registered = Registered(core.endpoints, core.prober, lambda: core.reload.settings)
    setting = SharedSetting(
        WorkerEntries(),
        registered.take,
        store_of(core.settings, core.folder, "workers"),
        name="workers that were added",
    )

    def routes(token: str) -> list[APIRouter]:
        from pdgate.gateway.admin.control import ControlRoutes
        from pdgate.gateway.admin.workers import routes

        asked = ControlRoutes(found, given.max_body_bytes, lambda: service.intake.aliases)
        return [asked.of(token), routes(registered, setting, token)]

    jobs = {"control": following.run}
    if setting.shared:
        jobs["added-workers"] = setting.follow
    return found, Component(
        jobs, board.close, partial(metrics.control, holds, found), routes=routes
    )
