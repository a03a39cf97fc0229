"""`pdgate conformance`. Heavy imports wait until it runs, so that help is quick."""

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import typer

if TYPE_CHECKING:
    from pdgate.lab.conformance.check import Check

LEAST_WIDTH = 100
WHAT, WHERE, SHOWN = "What is checked", "Where", "What is shown"
Many = list[str] | None


def _option(panel: str, help: str, *flags: str) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=panel, show_default=False)


def conformance(
    pdd_protocol: Annotated[str, _option(WHAT, "The forwarder, as `pdgate protocols` lists it.")],
    mode: Annotated[
        Literal["batch", "staged"] | None, _option(WHAT, "Else batch, if it can.")
    ] = None,
    generation: Annotated[str, _option(WHAT, "Of protocols that have several.")] = "",
    check: Annotated[Many, _option(WHAT, "Only this check; repeat it.")] = None,
    engine_protocol: Annotated[
        str, _option(WHERE, "What reference engines are to speak, if not --pdd-protocol.")
    ] = "",
    prefill: Annotated[
        Many, _option(WHERE, "A prefill engine of yours: URL, or as serve's --instance.")
    ] = None,
    decode: Annotated[Many, _option(WHERE, "A decode engine of yours; repeat it.")] = None,
    alone: Annotated[
        str, _option(WHERE, "An engine to compare with, else the first decode engine.")
    ] = "",
    gateway: Annotated[str, _option(WHERE, "URL of a gateway that has these engines.")] = "",
    model: Annotated[str, _option(WHERE, "Else the gateway's first.")] = "",
    queue: Annotated[
        str, _option(WHERE, "With decode-first: redis://host:port/0, else one is started.")
    ] = "",
    json_: Annotated[bool, _option(SHOWN, "For programs.", "--json")] = False,
    junit: Annotated[Path | None, _option(SHOWN, "File for JUnit's XML.")] = None,
) -> None:
    """Check that a protocol does what every protocol must, ours or that of a package.

    Without --decode it starts reference engines (extra `engine`) and a gateway on this machine.
    """
    from rich.console import Console

    from pdgate.lab.conformance import BadWish, ProcessFailed, Wanted, run

    wanted = Wanted(
        protocol=pdd_protocol,
        mode=mode,
        generation=generation,
        engine_protocol=engine_protocol,
        prefills=tuple(prefill or ()),
        decodes=tuple(decode or ()),
        gateway=gateway,
        alone=alone,
        model=model,
        queue=queue,
        checks=tuple(check or ()),
    )
    # As Ctrl-C does, it ends the engines, too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if junit is not None and not junit.absolute().parent.is_dir():
            raise BadWish(f"--junit {junit}: there is no folder {junit.absolute().parent}")
        with _Bar() as bar:
            report = run(wanted, bar.begins)
    except BadWish as error:
        typer.echo(f"pdgate conformance: {error}", err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        typer.echo("pdgate conformance: stopped", err=True)
        raise typer.Exit(0) from None
    except ProcessFailed as error:
        typer.echo(f"pdgate conformance: {error}", err=True)
        raise typer.Exit(1) from None
    if junit is not None:
        try:
            junit.write_bytes(report.junit())
        except OSError as error:
            typer.echo(f"pdgate conformance: {junit} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(1) from None
    if json_:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        console = Console()
        console.width = max(console.width, LEAST_WIDTH)
        console.print(report.table())
        typer.echo(report.summary())
    if report.failed:
        raise typer.Exit(1)


class _Bar:
    """Progress on stderr, so that what is on stdout can be read by programs."""

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description:18}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task("starting engines", total=None)
        return self

    def begins(self, check: "Check | None", over: int, total: int) -> None:
        doing = check.id if check else ("ending" if over else "starting engines")
        self._bar.update(self._task, description=doing, completed=over, total=total)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
