"""The `simulate` command."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pdgate.lab.simulator import asked, report
from pdgate.lab.simulator.bound import Bound, bound, capacity
from pdgate.lab.simulator.comparing import Case, cases, run_all
from pdgate.lab.simulator.pictures.page import draw
from pdgate.lab.simulator.summary import Summary, summary
from pdgate.lab.simulator.trace import BadTrace, TraceCall, faster
from pdgate.lab.simulator.world import Ran, WorldPlan
from pdgate.scheduling.admission import Limits
from pdgate.scheduling.policy import DEFAULT

LEAST_WIDTH = 110

CALLS, POLICIES, ENGINES, SHOWN = "Calls", "Policies", "Engines", "What is shown"


def _option(panel: str, help: str, **more: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, **more)


def simulate(
    trace: Annotated[
        Path | None, _option(CALLS, "JSONL of calls; without one they are made up.")
    ] = None,
    shape: Annotated[
        asked.Shape, _option(CALLS, "Of those that are made up: reuse, lengths, bursts.")
    ] = "conversations",
    calls: Annotated[int | None, _option(CALLS, "Only so many.", min=2)] = None,
    scale: Annotated[
        str, _option(CALLS, "Times as fast as in the trace; 1,2,3 for several.")
    ] = "1",
    batch_share: Annotated[
        float, _option(CALLS, "Of the calls, that are of priority 7.", min=0, max=1)
    ] = 0.0,
    copies: Annotated[int, _option(CALLS, "Populations that do the same.", min=1)] = 1,
    policy: Annotated[str, _option(POLICIES, "For both roles.")] = DEFAULT,
    prefill_policy: Annotated[str | None, _option(POLICIES, "For prefill.")] = None,
    decode_policy: Annotated[str | None, _option(POLICIES, "For decode.")] = None,
    compare: Annotated[
        str | None, _option(POLICIES, "Several: a,b,c+d (c for prefill, d for decode).")
    ] = None,
    disaggregate: Annotated[asked.Split, _option(POLICIES, "Which calls are split.")] = "always",
    uncached_tokens: Annotated[int, _option(POLICIES, "Longer prompts are split.", min=0)] = 1000,
    staged: Annotated[
        bool,
        typer.Option("--staged", help="Choose decode after prefill.", rich_help_panel=POLICIES),
    ] = False,
    compare_modes: Annotated[
        bool,
        typer.Option(
            "--compare-modes", help="Each policy in batch and staged.", rich_help_panel=POLICIES
        ),
    ] = False,
    prefill_concurrency: Annotated[
        int | None, _option(POLICIES, "Calls at a prefill engine; others wait.", min=1)
    ] = None,
    decode_concurrency: Annotated[
        int | None, _option(POLICIES, "Calls at a decode engine; others wait.", min=1)
    ] = None,
    prefill_queue: Annotated[
        float | None,
        _option(POLICIES, "Seconds of reading at each engine; others wait. 0: at engines.", min=0),
    ] = None,
    late_share: Annotated[
        float, _option(POLICIES, "Of reading, for late calls that wait.", min=0, max=1)
    ] = Limits().late_share,
    max_wait: Annotated[
        float | None, _option(POLICIES, "Seconds that one may wait; else 429.")
    ] = None,
    give_way: Annotated[
        int, _option(POLICIES, "Times that a low call may, for urgent ones.", min=0)
    ] = 0,
    prefills: Annotated[int, _option(ENGINES, "Prefill engines.", min=0)] = 8,
    decodes: Annotated[int, _option(ENGINES, "Decode engines.", min=0)] = 8,
    both: Annotated[int, _option(ENGINES, "Engines that do either.", min=0)] = 0,
    encoders: Annotated[int, _option(ENGINES, "Engines that encode media.", min=0)] = 0,
    item_ms: Annotated[float, _option(ENGINES, "To encode one item.", min=0)] = 100.0,
    engine: Annotated[str, _option(ENGINES, "8b, 70b, or a TOML file of speeds.")] = "8b",
    engine_figure: Annotated[
        list[str] | None,
        _option(ENGINES, "kv_tokens=200000: another figure than the engine's. Repeatable."),
    ] = None,
    engine_speed: Annotated[float, _option(ENGINES, "Times as fast.")] = 1.0,
    kill: Annotated[
        list[str] | None, _option(ENGINES, "p0@600-900: gone from 600 s to 900 s. Repeatable.")
    ] = None,
    ttft_target: Annotated[float, _option(SHOWN, "Seconds, for goodput and policies.")] = 5.0,
    tpot_target: Annotated[float, _option(SHOWN, "Seconds, for goodput and policies.")] = 0.025,
    seed: Annotated[int, _option(SHOWN, "The same one gives the same result.")] = 0,
    processes: Annotated[int, _option(SHOWN, "That simulate at a time.", min=1)] = 1,
    bound_: Annotated[
        bool,
        typer.Option(
            "--bound", help="What no policy can exceed, and the capacity.", rich_help_panel=SHOWN
        ),
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Figures as JSON.", rich_help_panel=SHOWN)
    ] = False,
    out: Annotated[Path | None, _option(SHOWN, "Folder for a page with pictures.")] = None,
) -> None:
    """Send the calls of a trace through the real scheduler, against simulated engines."""
    try:
        pairs = asked.policies_of(policy, prefill_policy, decode_policy, compare)
        scales = asked.numbers_of("--scale", scale)
        engines = asked.engines_of(prefills, decodes, both, encoders)
        hardware = asked.hardware_of(engine, engine_speed)
        limits_of = asked.limits_of(
            *(prefill_concurrency, decode_concurrency, prefill_queue),
            *(late_share, max_wait, asked.targets_of(ttft_target, tpot_target)),
            give_way,
        )
        base = WorldPlan(
            prefills=prefills,
            decodes=decodes,
            both=both,
            encoders=encoders,
            item_seconds=item_ms / 1000,
            hardware=asked.with_figures(hardware, engine_figure or ()),
            targets=asked.targets_of(ttft_target, tpot_target),
            rule=asked.rule_of(disaggregate, uncached_tokens),
            outages=asked.outages_of(kill or (), engines),
            staged=staged,
            seed=seed,
        )
        asks = asked.calls_of(trace, calls, copies, seed, shape, batch_share)
        if out is not None:
            _make(out)
    except (asked.BadSimulatorFlag, BadTrace) as error:
        typer.echo(f"pdgate simulate: {error}", err=True)
        raise typer.Exit(2) from None
    plans = _plans(base, pairs, limits_of)
    several = cases(_in_both_modes(plans) if compare_modes else plans, scales)
    ran = _run(several, asks, processes)
    figures = [summary(one) for one in ran]
    limits = {one: bound(base, faster(asks, one)) for one in scales} if bound_ else {}
    if out is not None:
        try:
            drawn = draw(out, several, ran, figures, limits)
        except OSError as error:
            typer.echo(f"pdgate simulate: {out} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(1) from None
        typer.echo(f"pictures: {drawn}", err=True)
    if json_:
        typer.echo(json.dumps(report.as_json(several, figures, limits), indent=2))
        return
    _show(several, figures, len(asks), limits)
    if bound_:
        typer.echo(report.of_capacity(capacity(base, asks)))


def _make(folder: Path) -> None:
    """Before anything is simulated, as it would be a pity afterwards. Raises BadSimulatorFlag."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise asked.BadSimulatorFlag(f"--out {folder} cannot be made: {error.strerror}") from None


def _plans(
    base: WorldPlan, pairs: Sequence[tuple[str, str]], limits_of: Callable[[str], Limits]
) -> dict[str, WorldPlan]:
    return {
        prefill if prefill == decode else f"{prefill}+{decode}": replace(
            base, prefill_policy=prefill, decode_policy=decode, limits=limits_of(prefill)
        )
        for prefill, decode in pairs
    }


def _in_both_modes(plans: Mapping[str, WorldPlan]) -> dict[str, WorldPlan]:
    return {
        f"{name}, {mode}": replace(plan, staged=mode == "staged")
        for name, plan in plans.items()
        for mode in ("batch", "staged")
    }


def _run(several: Sequence[Case], asks: Sequence[TraceCall], processes: int) -> list[Ran]:
    """On stderr, so that what is on stdout can be read by programs."""
    bar = Progress(
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=len(several) * len(asks))
        done = 0

        def progress(calls: int) -> None:
            nonlocal done
            done += calls
            # Telling the bar costs about as much as simulating a call.
            if calls > 1 or done % 100 == 0:
                bar.update(task, completed=done)

        return run_all(several, asks, processes=processes, progress=progress)


def _show(
    several: Sequence[Case],
    figures: Sequence[Summary],
    calls: int,
    limits: Mapping[float, Bound],
) -> None:
    console = Console()
    # On a narrow terminal lines break, but no figure is cut off.
    console.width = max(console.width, LEAST_WIDTH)
    for scale in dict.fromkeys(case.scale for case in several):
        of_scale = {
            case.policy: one
            for case, one in zip(several, figures, strict=True)
            if case.scale == scale
        }
        seconds = next(iter(of_scale.values())).came_seconds
        title = f"{calls} calls in {seconds:.0f} seconds (scale {scale:g})"
        console.print(report.table(title, of_scale))
        if scale in limits:
            typer.echo(report.of_bound(limits[scale]))
