"""`pdgate key`: makes an API key, and the table that lets it in."""

import json
from typing import Annotated

import typer

from pdgate.gateway.security.keys import hash_of, is_name, new_key


def key(
    name: Annotated[str, typer.Argument(help="Shown in logs and metrics.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Name, key and hash, for programs.")
    ] = False,
) -> None:
    """Make an API key. It is shown once; what the gateway gets is its hash."""
    if not is_name(name):
        raise typer.BadParameter(
            "a key's name has letters, digits, '.', '_' and '-', 64 at most", param_hint="NAME"
        )
    made = new_key()
    sha256 = hash_of(made.encode())
    if as_json:
        typer.echo(json.dumps({"name": name, "key": made, "sha256": sha256}, indent=2))
        return
    typer.echo(made)
    # JSON's strings are TOML's.
    typer.echo(f'\n[[api_keys]]\nname = {json.dumps(name)}\nsha256 = "{sha256}"', err=True)
