"""`pdgate protocols`."""

import json
from typing import Annotated

import typer


def protocols(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the protocols that are installed, from which package, and their modes."""
    from pdgate.gateway.installed import lines, protocols

    found = protocols()
    if as_json:
        typer.echo(json.dumps([one.as_json() for one in found], indent=2))
    else:
        typer.echo("\n".join(lines(found)))
