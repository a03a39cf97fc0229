"""`pdgate serve`. Heavy imports wait until it runs, so that help is quick."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from pdgate.gateway.cli.flags import overrides, with_flags
from pdgate.gateway.config.setting import CONNECTION


@with_flags
def serve(
    config: Annotated[
        Path | None, typer.Option(help="TOML file; flags go over it.", show_default=False)
    ] = None,
    compat: Annotated[
        str | None,
        typer.Option(
            help="Read the flags of vllm-router or vllm-toy-proxy instead of these.",
            rich_help_panel=CONNECTION,
            show_default=False,
        ),
    ] = None,
    **flags: Any,
) -> None:
    """Run the gateway.

    Engines may still be down: they are used as soon as they are well.
    """
    run("serve", config, flags)


def run(command: str, config: Path | None, flags: dict[str, Any]) -> None:
    """Run the gateway that a file and flags describe, until a signal ends it. `command`: how complaints begin."""
    from pdgate.gateway.config import ConfigError
    from pdgate.gateway.lifecycle.source import SettingsSource

    try:
        source = SettingsSource(config and config.absolute(), overrides(flags))
        settings = source.read()
    except ConfigError as error:
        typer.echo(f"pdgate {command}: {error}", err=True)
        raise typer.Exit(2) from None

    from pdgate.gateway import server
    from pdgate.gateway.listening import CannotListen

    # The server finishes its calls and then sends the signal once more, to end as told to.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        server.serve(settings, source)
    except CannotListen as error:
        typer.echo(f"pdgate {command}: {error}", err=True)
        raise typer.Exit(1) from None
    except SystemExit as end:
        # It has said why; its own codes are not ours.
        raise typer.Exit(1 if end.code else 0) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
