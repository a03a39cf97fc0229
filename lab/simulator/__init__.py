"""`pdgate simulate`: calls of a trace through the real scheduler, against simulated engines.

The policies, the scheduler, its accounts, the admission line and the rules for splitting are the
gateway's own objects, with another clock. Only what is behind them is simulated: engines, their
KV caches, and the links between them.

    trace.py, synthetic.py   the calls: when, how long, which prefix blocks
    agenda.py                the clock, and what happens next
    hardware.py              how fast an engine is, and what fits into it
    kv_cache.py              which blocks it keeps
    engine.py                continuous batching, many steps at once where nothing changes
    links.py                 KV on its way from prefill to decode
    journey.py               the life of one call, as forwarders/execution.py has it
    gate.py                  where calls wait, as gateway/admission/gate.py has it
    fleet.py                 instances, engines, what they say of themselves, and when they die
    world.py                 a plan, put together and run to its end
    outcome.py, summary.py   what became of each call, and what that is together
    bound/                   what no policy can exceed
    report.py, pictures/     tables, JSON, and a page with pictures
    planning.py, plan_cli.py how many engines a load takes
    cli.py                   the command

The same plan and seed give the same result, to the last digit.
"""
