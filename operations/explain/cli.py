"""The `explain` command."""

import json
from pathlib import Path
from typing import Annotated

import typer


def explain(
    request_id: Annotated[str, typer.Argument(help="The x-request-id that the client got.")],
    gateway: Annotated[
        str, typer.Option(help="URL of the gateway; of its admin listener if it has one.")
    ] = "http://127.0.0.1:8000",
    admin_token_file: Annotated[
        Path | None, typer.Option(help="File with the admin token.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The record, for programs.")] = False,
) -> None:
    """Tell what happened to a call, and why: engines, times, retries, KV.

    The gateway must run with --debug-routes, or with an admin token, which is needed here then.
    """
    from pdgate.cluster.printable import printable
    from pdgate.operations.asking import BadAsk, GatewayAway, asking
    from pdgate.operations.explain.collect import record_of
    from pdgate.operations.explain.story import story

    try:
        with asking(gateway, admin_token_file) as asked:
            record = record_of(asked, request_id)
    except BadAsk as error:
        typer.echo(f"pdgate explain: {error}", err=True)
        raise typer.Exit(2) from None
    except GatewayAway as error:
        typer.echo(f"pdgate explain: {error}", err=True)
        raise typer.Exit(1) from None
    lines = map(printable, () if as_json else story(record))
    typer.echo(json.dumps(record, indent=2) if as_json else "\n".join(lines))
