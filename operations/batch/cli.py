"""The `batch` command. Heavy imports wait until it runs, so that help is quick."""

from pathlib import Path
from typing import Annotated

import typer


def batch(
    what: Annotated[
        str, typer.Argument(metavar="FILE", help="Lines of calls; or the id of a batch that runs.")
    ],
    url: Annotated[
        str, typer.Option("--gateway", help="URL of the gateway.")
    ] = "http://127.0.0.1:8000",
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the caller's API key.", show_default=False)
    ] = None,
    window: Annotated[str, typer.Option(help="Time for all of it, as 24h or 30m.")] = "24h",
    output: Annotated[
        Path | None, typer.Option(help="File for answers; else stdout.", show_default=False)
    ] = None,
    errors: Annotated[
        Path | None, typer.Option(help="File for error lines; else stderr.", show_default=False)
    ] = None,
) -> None:
    """Send a file of calls as a batch, wait for its end, and write the answers.

    Ctrl-C ends the waiting, and not the batch: its id goes on with it. Exit code 1 where a line has no answer.
    """
    from pdgate.cluster.printable import printable
    from pdgate.operations.asking import BadAsk, GatewayAway
    from pdgate.operations.batch.waiting import BatchOrder, carry_out

    order = BatchOrder(what, url, api_key_file, window, output, errors)
    try:
        whole = carry_out(
            order, lambda said: typer.echo(printable(f"pdgate batch: {said}"), err=True)
        )
    except BadAsk as error:
        typer.echo(f"pdgate batch: {error}", err=True)
        raise typer.Exit(2) from None
    except GatewayAway as error:
        typer.echo(f"pdgate batch: {error}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        # The reader of the answers has had enough, as `head`.
        raise typer.Exit(0) from None
    if not whole:
        raise typer.Exit(1)
