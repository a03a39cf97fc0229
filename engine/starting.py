"""Rules of a start: what stands against it that can be known before anything is opened.

The start keeps them, `pdgate engine --check` only says them, and `pdgate doctor --start` asks that of each command.
"""

import os
from typing import Final

from pdgate.engine import transfer_options
from pdgate.engine.hand_over import registry
from pdgate.engine.layout import Layout
from pdgate.engine.model.config import ModelConfig
from pdgate.engine.model.load import config_of
from pdgate.engine.peers import connector_settings
from pdgate.engine.ranks import seats
from pdgate.engine.settings import NO_PROTOCOL, EngineSettings
from pdgate.transfer import memory
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.fleet import Identity

ONE_PLACE: Final = ("port", "socket_name")
"""Options of a transfer backend that say where it listens, which several ranks cannot share."""


def check(settings: EngineSettings) -> None:
    """Raise ValueError, LookupError, TypeError or OSError with a sentence if no engine of these can start.

    What the machine has (ports that are free, files of secrets, a library) is left to the start.
    """
    layout_of(settings, config_of(settings.model))
    if settings.protocol == NO_PROTOCOL and not settings.shares_tiers:
        return
    in_environment = map(os.environ.get, (fleet.FILE_VARIABLE, fleet.SECRET_VARIABLE))
    if not settings.kv_secret_file and not any(in_environment):
        fleet.check_place("the KV side", settings.kv_host, Identity())
    if settings.shares_tiers:
        transfer_options.kinds(settings.kv_tier_transfer)
    if settings.protocol == NO_PROTOCOL:
        return
    registry.checked(settings.protocol, connector_settings(settings, settings.port, "", Identity()))
    transfer_options.kinds(settings.transfer)
    transfer_options.read(settings.transfer, settings.transfer_options)
    has_ranks(settings)
    _takes_device(settings)


def _takes_device(settings: EngineSettings) -> None:
    if memory.kind(settings.device) != memory.CUDA:
        return
    if not registry.load(settings.protocol).takes_devices:
        raise ValueError(
            f"{settings.protocol} hands over memory of the host only: --device {settings.device}"
        )
    if memory.CUDA not in transfer_options.moves(settings.transfer):
        raise ValueError(
            f"{settings.transfer} moves no memory of a GPU: --device {settings.device}"
        )


def has_ranks(settings: EngineSettings) -> bool:
    """Return whether its ranks are processes. Raise ValueError, LookupError, TypeError."""
    protocol = registry.load(settings.protocol)
    takes = protocol.takes_ranks
    if settings.dp > 1 and not protocol.takes_data_ranks:
        raise ValueError(
            f"with {settings.protocol} an engine of ours has one data-parallel rank: dp {settings.dp}"
        )
    if settings.pp > 1 and not takes:
        raise ValueError(f"{settings.protocol} knows no pipeline stages: pp {settings.pp}")
    count = settings.tp * settings.pp
    if not takes or count == 1:
        return False
    for name, value in transfer_options.read(settings.transfer, settings.transfer_options).items():
        if name in ONE_PLACE and value:
            raise ValueError(
                f"each of {count} ranks listens at a place of its own: "
                f"leave the transfer option {name}={value} out"
            )
    return True


def layout_of(settings: EngineSettings, config: ModelConfig) -> Layout:
    """Return the layout of its KV pages. Raise ValueError if the model cannot be split so."""
    if settings.protocol == NO_PROTOCOL and settings.pp > 1:
        raise ValueError("a plain engine hands nothing over, so it has no pipeline stages")
    if config.heads % settings.tp:
        raise ValueError(f"{config.heads} heads cannot be split evenly over tp {settings.tp}")
    return Layout(
        config.layers,
        settings.blocks,
        config.kv_heads,
        settings.block_tokens,
        config.head_dim,
        tp=settings.tp,
        planes=config.kv_planes,
        stages=seats.stages(config.layers, settings.pp),
    )
