"""`pdgate demo`. Heavy imports wait until it runs, so that help is quick."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pdgate.protocols.extras import install

WITHOUT_EXTRA = f"the demo needs more packages: {install('demo')}"


def demo(
    pdd_protocol: Annotated[str, typer.Option(help="How KV is handed over.")] = "vllm-nixl",
    scheduling_mode: Annotated[
        Literal["batch", "staged"] | None,
        typer.Option(help="As in serve.", show_default="batch if it can"),
    ] = None,
    prefills: Annotated[int, typer.Option(help="Prefill engines.")] = 1,
    decodes: Annotated[int, typer.Option(help="Decode engines.")] = 1,
    transfer: Annotated[str, typer.Option(help="What moves the KV: shm or tcp.")] = "shm",
    port: Annotated[int, typer.Option(help="Of the gateway; 0: a free one.")] = 8000,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of a Llama model; a tiny one is built in.", show_default=False),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the first answer.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="What happened, in a line for programs.")
    ] = False,
    queue: Annotated[
        str,
        typer.Option(help="With decode-first: redis://host:port/0.", show_default="one of its own"),
    ] = "",
) -> None:
    """Start engines and the gateway on this machine, ask one question, show how it went."""
    from pdgate.lab.demo.plan import BadPlan, DemoPlan

    try:
        plan = DemoPlan(
            protocol=pdd_protocol,
            mode=scheduling_mode,
            prefills=prefills,
            decodes=decodes,
            transfer=transfer,
            port=port,
            model=model,
            once=once,
            as_json=as_json,
            queue=queue,
        )
        plan.check()
        from pdgate.lab.demo.run import run
    except BadPlan as error:
        typer.echo(f"pdgate demo: {error}", err=True)
        raise typer.Exit(2) from None
    except ModuleNotFoundError as error:
        if error.name != "openai":
            raise
        typer.echo(WITHOUT_EXTRA, err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(run(plan))
