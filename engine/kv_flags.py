"""Flags by which an engine, or a worker beside one, proves to peers that it is of their fleet."""

from typing import Annotated

import typer

from pdgate.transfer.runtime.fleet import FILE_VARIABLE

KvSecretFile = Annotated[
    str,
    typer.Option(
        help="Secrets of the fleet, one a line: KV is for engines that have one of them.",
        envvar=FILE_VARIABLE,
    ),
]
KvTlsCertFile = Annotated[str, typer.Option(help="Encrypts KV: this engine's certificate (PEM).")]
KvTlsKeyFile = Annotated[str, typer.Option(help="Its key.")]
KvTlsCaFile = Annotated[
    str, typer.Option(help="Authority that vouches for the fleet's engines, and for no others.")
]
