"""The `plan` command."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pdgate.lab.simulator import asked
from pdgate.lab.simulator.planning import Tried, planned
from pdgate.lab.simulator.trace import BadTrace, faster
from pdgate.lab.simulator.world import WorldPlan
from pdgate.scheduling.admission import Limits


def plan(
    trace: Annotated[
        Path | None, typer.Option(help="JSONL of calls; without one they are made up.")
    ] = None,
    shape: Annotated[asked.Shape, typer.Option(help="Of those that are made up.")] = (
        "conversations"
    ),
    calls: Annotated[int | None, typer.Option(help="Only so many.", min=2)] = None,
    scale: Annotated[float, typer.Option(help="Times as fast as in the trace.", min=0.001)] = 1.0,
    wanted: Annotated[
        float,
        typer.Option(help="Share to be in time, of calls that are short enough.", min=0.01, max=1),
    ] = 0.95,
    most: Annotated[int, typer.Option(help="Engines of each side.", min=1)] = 64,
    engine: Annotated[str, typer.Option(help="8b, 70b, or a TOML file of speeds.")] = "8b",
    engine_speed: Annotated[float, typer.Option(help="Times as fast.")] = 1.0,
    ttft_target: Annotated[float, typer.Option(help="Seconds until the first token.")] = 5.0,
    tpot_target: Annotated[float, typer.Option(help="Seconds between two tokens.")] = 0.025,
    seed: Annotated[int, typer.Option(help="The same one gives the same result.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Say how many prefill and decode engines a load takes, in which ratio, and why."""
    try:
        targets = asked.targets_of(ttft_target, tpot_target)
        base = WorldPlan(
            hardware=asked.hardware_of(engine, engine_speed),
            targets=targets,
            limits=Limits.of({}, targets, targets),
            seed=seed,
        )
        asks = faster(asked.calls_of(trace, calls, 1, seed, shape), scale)
        found = planned(base, asks, wanted, most, _progress)
    except (asked.BadSimulatorFlag, BadTrace, ValueError) as error:
        typer.echo(f"pdgate plan: {error}", err=True)
        raise typer.Exit(2) from None
    if json_:
        said = {**asdict(found), "ratio": found.ratio, "reason": found.reason()}
        typer.echo(json.dumps(said, indent=2))
    elif found.enough is not None:
        one = found.enough
        typer.echo(f"{one.prefills} prefill and {one.decodes} decode engines ({found.ratio})")
        typer.echo(found.reason())
    else:
        typer.echo(f"{most} engines of each side are too few: {found.reason()}")
    if found.enough is None:
        raise typer.Exit(1)


def _progress(tried: Tried) -> None:
    words = f"{tried.prefills} prefill, {tried.decodes} decode: {tried.in_time:.1%} in time"
    typer.echo(words, err=True)
