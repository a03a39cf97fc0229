"""A core and its connector, with the KV memory that peers reach: in this process, or in those of its ranks."""

import contextlib
import secrets
from collections.abc import Callable

from pdgate.engine.cache.memory import PagedKv
from pdgate.engine.connector import Connector
from pdgate.engine.core import EngineCore
from pdgate.engine.hand_over import registry
from pdgate.engine.layout import Layout
from pdgate.engine.model.load import LoadedModel
from pdgate.engine.peers import connector_settings, open_backend
from pdgate.engine.ranks.connector import RanksConnector
from pdgate.engine.ranks.crew import Crew, RankLost
from pdgate.engine.ranks.pages import RanksKv
from pdgate.engine.ranks.seats import places
from pdgate.engine.ranks.words import Start
from pdgate.engine.settings import EngineSettings
from pdgate.engine.speculation import state_bytes
from pdgate.engine.starting import has_ranks
from pdgate.engine.tensors import registered
from pdgate.transfer.runtime.fleet import Identity

Made = Callable[[PagedKv], EngineCore]
"""Makes a core over pages."""


def met(
    settings: EngineSettings,
    made: Made,
    layout: Layout,
    model: LoadedModel,
    api_port: int,
    identity: Identity,
    lost: Callable[[str], None],
    closing: contextlib.ExitStack,
) -> tuple[EngineCore, Connector]:
    """A core that is not started, and its connector, which is closed by `closing`.

    `state_bytes`: what a state of the model takes (speculation.py).
    Raises OSError, ValueError, LookupError, TypeError, RankLost.
    """
    if has_ranks(settings):
        state = state_bytes(model.config.hidden_size)
        return in_ranks(settings, made, layout, model.root, state, api_port, lost, closing)
    backend = open_backend(settings, identity)
    closing.callback(backend.close)
    kv = registered(layout, backend, model.tensors)
    core = made(kv.memory)
    connector = registry.connect(
        settings.protocol,
        core=core,
        layout=layout,
        regions=kv.regions,
        backend=backend,
        settings=connector_settings(
            settings,
            api_port,
            model.root,
            identity,
            state_bytes=state_bytes(model.config.hidden_size),
            moment=kv.moment,
        ),
    )
    closing.callback(connector.close)
    return core, connector


def in_ranks(
    settings: EngineSettings,
    made: Made,
    layout: Layout,
    model_root: str,
    state_bytes: int,
    api_port: int,
    lost: Callable[[str], None],
    closing: contextlib.ExitStack,
) -> tuple[EngineCore, RanksConnector]:
    """Meet as `met` does, with processes; `lost` is called when one has ended, and all requests with it."""
    engine_id = settings.engine_id or secrets.token_hex(16)
    crew = Crew(
        [
            Start(
                settings,
                layout,
                place,
                api_port,
                kv_port=0 if place.number else settings.kv_port,
                model_root=model_root,
                state_bytes=state_bytes,
                engine_id=engine_id,
            )
            for place in places(layout)
        ]
    )
    core = made(RanksKv(layout, crew))
    speaks = registry.load(settings.protocol)
    # What the core asks of a connector's class is the protocol's.
    kind = type(
        "RanksConnector",
        (RanksConnector,),
        {"load_failure": speaks.load_failure, "written": speaks.written},
    )
    connector: RanksConnector = kind(crew, core, layout)
    closing.callback(connector.close)

    def end(why: str) -> None:
        connector.lost(why)
        core.fail(RankLost(why))
        lost(why)

    crew.watch(connector.heard, end)
    return core, connector
