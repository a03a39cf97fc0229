"""The `doctor` command.

How engines are configured is the gateway's to read, and what they start with theirs to judge, which commands for
operators do not import; so both are `Handed` in where the command line is put together (src/pdgate/__main__.py).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import typer

from pdgate.protocols.instance import Instance

if TYPE_CHECKING:
    import httpx2

    from pdgate.operations.doctor.examining import Wish
    from pdgate.operations.doctor.seen import Gatewise

FLEET, GATEWAY, WAY = "The fleet, as for pdgate serve", "The fleet of a running gateway", "How"
START = "Engines that are yet to be started"

Urls = list[str] | None
_NOT_SERVES: Final = (
    *("gateway", "admin_token_file", "remember", "timeout", "probe", "as_json"),
    "start",
)
"""Flags that `pdgate serve` has not, or that mean something else there."""


class Configured(Protocol):
    """
    Attributes:
        client: Makes a client that shows itself to engines as the gateway does.
        lease_seconds: How long prefill keeps KV, if that was configured.
        kv_secrets: Of the fleet, where engines publish KV events for its members alone.
    """

    @property
    def instances(self) -> Sequence[Instance]: ...

    @property
    def client(self) -> "Callable[..., httpx2.AsyncClient]": ...

    @property
    def lease_seconds(self) -> float | None: ...

    @property
    def kv_secrets(self) -> Sequence[str]: ...


Reads = Callable[[Path | None, Mapping[str, Any]], Configured]
"""Of a file and the flags of `pdgate serve`; raises ValueError with a sentence."""


class Handed(Protocol):
    """
    Attributes:
        why_not: What stands against a start by a command line, a sentence each; raises ValueError for no
            command of an engine.
    """

    @property
    def engines(self) -> Reads: ...

    @property
    def why_not(self) -> Callable[[str], Sequence[str]]: ...


def _option(panel: str, help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, show_default=False)


def doctor(
    context: typer.Context,
    config: Annotated[Path | None, _option(FLEET, "TOML file; flags go over it.")] = None,
    instance: Annotated[Urls, _option(FLEET, "role=prefill,url=...,kv=...; repeat it.")] = None,
    prefill: Annotated[Urls, _option(FLEET, "URL of a prefill engine; repeat it.")] = None,
    decode: Annotated[Urls, _option(FLEET, "URL of a decode engine; repeat it.")] = None,
    plain: Annotated[Urls, _option(FLEET, "URL of an engine that does both.")] = None,
    pdd_protocol: Annotated[str | None, _option(FLEET, "For engines that name none.")] = None,
    mooncake_generation: Annotated[
        Literal["auto", "a", "b", "c", "d"] | None, _option(FLEET, "Of vllm-mooncake engines.")
    ] = None,
    neuron_generation: Annotated[
        Literal["zmq", "static", "nixl"] | None, _option(FLEET, "Of neuron engines.")
    ] = None,
    kv_lease_seconds: Annotated[
        float | None, _option(FLEET, "How long prefill keeps KV, where that was changed.")
    ] = None,
    kv_events_secret_file: Annotated[
        str | None, _option(FLEET, "Secrets of the fleet, where KV events are for its members.")
    ] = None,
    engine_key_file: Annotated[
        str | None, _option(FLEET, "The key that engines ask for is in this file.")
    ] = None,
    engine_ca_file: Annotated[
        str | None, _option(FLEET, "Who signed the certificates of engines.")
    ] = None,
    engine_cert_file: Annotated[
        str | None, _option(FLEET, "The certificate that engines are shown.")
    ] = None,
    engine_cert_key_file: Annotated[
        str | None, _option(FLEET, "The key of that certificate.")
    ] = None,
    engine_server_name: Annotated[
        str | None, _option(FLEET, "The name in the certificates of engines.")
    ] = None,
    gateway: Annotated[
        str | None, _option(GATEWAY, "Its URL, or that of its admin listener.")
    ] = None,
    admin_token_file: Annotated[Path | None, _option(GATEWAY, "File with the admin token.")] = None,
    start: Annotated[
        list[str] | None,
        _option(START, "'vllm serve ...' or 'pdgate engine ...'; nothing is started; repeat it."),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe",
            help="Send calls of one token, and connect to where KV is fetched.",
            rich_help_panel=WAY,
        ),
    ] = True,
    remember: Annotated[
        Path | None,
        _option(WAY, "File for engine ids, to find those that survive a restart."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds for an answer.", min=0.1, rich_help_panel=WAY)
    ] = 20.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs.", rich_help_panel=WAY)
    ] = False,
) -> None:
    """Look at every engine, and name what is wrong and its cure.

    Exit code 0: nothing was found. 1: something was. 2: told something wrong.
    """
    import asyncio

    from rich.console import Console

    from pdgate.operations.asking import BadAsk, GatewayAway
    from pdgate.operations.doctor import report
    from pdgate.operations.doctor.examining import examine, ids_of, write_ids
    from pdgate.operations.doctor.rules import findings

    try:
        wish = _wish(context, context.params)
    except (BadAsk, ValueError) as error:
        typer.echo(f"pdgate doctor: {error}", err=True)
        raise typer.Exit(2) from None
    except GatewayAway as error:
        typer.echo(f"pdgate doctor: {error}", err=True)
        raise typer.Exit(1) from None
    with _bar() as bar:
        examined = asyncio.run(examine(wish, bar))
    found = findings(examined)
    if as_json:
        typer.echo(json.dumps(report.as_json(examined, found), indent=2))
    else:
        report.show(Console(), examined, found)
    if remember is not None:
        try:
            write_ids(remember, wish.before or {}, ids_of(examined))
        except OSError as error:
            typer.echo(f"pdgate doctor: cannot write {remember}: {error.strerror}", err=True)
            raise typer.Exit(1) from None
    raise typer.Exit(1 if found else 0)


def _wish(context: typer.Context, flags: Mapping[str, Any]) -> "Wish":
    """Raises ValueError, BadAsk, GatewayAway."""
    from functools import partial

    from pdgate.operations.asking import BadAsk, asking
    from pdgate.operations.doctor.collect import fleet_of
    from pdgate.operations.doctor.examining import Wish, read_ids

    handed: Handed = context.find_root().obj
    reads = handed.engines
    of_serve = {name: value for name, value in flags.items() if name not in _NOT_SERVES}
    told = reads(of_serve.pop("config"), of_serve)
    instances: Sequence[Instance] = told.instances
    gatewise: Sequence[Gatewise] = ()
    if flags["gateway"]:
        if instances:
            raise BadAsk("say either --gateway, or which engines there are")
        with asking(flags["gateway"], flags["admin_token_file"]) as gateway:
            instances, gatewise = fleet_of(gateway)
    if not instances and not flags["start"]:
        raise BadAsk(
            "there are no engines to look at: name some (--prefill URL --decode URL, or --config "
            "FILE), a gateway that has them from a directory (--gateway URL), or how one is to be "
            "started (--start COMMAND)"
        )
    return Wish(
        instances,
        partial(told.client, timeout=flags["timeout"]),
        flags["probe"],
        told.lease_seconds,
        read_ids(flags["remember"]) if flags["remember"] else {},
        gatewise,
        told.kv_secrets,
        {command: handed.why_not(command) for command in flags["start"] or ()},
    )


@contextmanager
def _bar() -> "Iterator[_Progress]":
    """On stderr, so that what is on stdout can be read by programs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("examining"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield _Progress(progress)


class _Progress:
    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=0)
        self._total = 0

    def add(self, steps: int) -> None:
        self._total += steps
        self._progress.update(self._task, total=self._total)

    def step(self) -> None:
        self._progress.advance(self._task)
