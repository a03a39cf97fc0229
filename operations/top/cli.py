"""The `top` command. Heavy imports wait until it runs, so that help is quick."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

ONCE_LINES = 30
"""Beside the engines, where the picture is not bound to a screen."""


def top(
    url: Annotated[
        str, typer.Argument(help="Of the gateway; of its admin listener if it has one.")
    ] = "http://127.0.0.1:8000",
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File with the admin token.", show_default=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="One picture, then end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="A line for each picture, for programs.")
    ] = False,
) -> None:
    """Show a running gateway in the terminal: engines, calls as they cross, KV, latencies.

    Until Ctrl-C. Where the output is no terminal it is one picture.
    """
    from rich.console import Console

    from pdgate.operations.asking import BadAsk, GatewayAway, address, token_of
    from pdgate.operations.top import watching
    from pdgate.operations.top.view import TopView

    console = Console()
    try:
        at = address(url)
        if admin_token_file is None:
            raise BadAsk("a gateway shows this to admins only: --admin-token-file FILE")
        token = token_of(admin_token_file)
        if as_json and not once:
            asyncio.run(watching.lines(at, token, typer.echo))
        elif once or not console.is_terminal:
            picture = asyncio.run(watching.once(at, token))
            if as_json:
                typer.echo(json.dumps(picture))
            else:
                view = TopView(at)
                watching.shown(view, picture)
                console.print(view, height=ONCE_LINES + len(picture["instances"]))
        else:
            asyncio.run(watching.screen(at, token, console))
    except BadAsk as error:
        typer.echo(f"pdgate top: {error}", err=True)
        raise typer.Exit(2) from None
    except GatewayAway as error:
        if as_json:
            typer.echo(json.dumps({"away": str(error)}))
        typer.echo(f"pdgate top: {error}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        # The reader of the lines has had enough, as `head`.
        raise typer.Exit(0) from None
