"""`pdgate key`: makes an API key, and the table that lets it in."""

from typing import Annotated

import typer

from pdgate.gateway.security.keys import hash_of, new_key


def key(name: Annotated[str, typer.Argument(help="Shown in logs and metrics.")]) -> None:
    """Make an API key. It is shown once; what the gateway gets is its hash."""
    made = new_key()
    typer.echo(made)
    typer.echo(f'\n[[api_keys]]\nname = "{name}"\nsha256 = "{hash_of(made.encode())}"', err=True)
