"""Several processes that are one gateway: what one of them is told, all are told.

    SIGTERM --> parent --SIGTERM--> each worker, which drains by itself
    SIGHUP ---> parent: reads, checks --SIGHUP--> each worker, which reads and takes
    POST /admin/drain, /admin/reload --> one worker, which does it, and signals its parent

A worker that starts later begins with what its parent read last.
"""

import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from socket import socket

import uvicorn
from uvicorn.supervisors import Multiprocess

from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.live import CHANGEABLE
from pdgate.gateway.lifecycle.reload import Reload, changed_keys, refuse_fixed
from pdgate.gateway.lifecycle.source import Source

log = logging.getLogger(__name__)

PARENT_VARIABLE = "PDGATE_PARENT"
"""Brings the parent's process id to the workers; set only where there are several."""


class Workers(Multiprocess):
    """The parent's side."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: list[socket],
        settings: Settings,
        source: Source,
        taken: Callable[[Settings], None],
    ) -> None:
        """`taken` is told what workers are to begin with from now on."""
        super().__init__(config, sockets)
        self._settings = settings
        self._source = source
        self._taken = taken
        os.environ[PARENT_VARIABLE] = str(os.getpid())

    def handle_hup(self) -> None:
        """uvicorn would start all workers anew."""
        try:
            wanted = self._source.read()
            refuse_fixed(changed_keys(self._settings, wanted), CHANGEABLE)
        except ConfigError as error:
            log.error("the configuration stays as it was: %s", error)
            return
        self._settings = wanted
        self._taken(wanted)
        for process in self.processes:
            if process.pid is not None and process.process.is_alive():
                os.kill(process.pid, signal.SIGHUP)

    def terminate_all(self) -> None:
        super().terminate_all()
        # While we held them, clients could still connect, and would wait in vain for the
        # last running call to end.
        for held in self.sockets:
            held.close()


def tell_the_others(drain: Drain, reload: Reload) -> None:
    """A worker's side; without a parent of ours there is nobody to tell."""
    parent = os.getppid()
    if os.environ.get(PARENT_VARIABLE) == str(parent):
        drain.pass_on = partial(_tell, parent, signal.SIGTERM)
        reload.pass_on = partial(_tell, parent, signal.SIGHUP)


def _tell(parent: int, number: signal.Signals) -> None:
    # An orphan's new parent must not be told anything.
    if os.getppid() == parent:
        os.kill(parent, number)
