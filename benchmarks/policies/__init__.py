"""Our policies and those of peers on the conversation trace, 8 prefill and 8 decode engines, simulated.

    .venv/bin/python -m benchmarks.policies                    # minutes; writes its part of RESULTS.md
    .venv/bin/python -m benchmarks.policies --calls 2000 --dry # quick, prints only

    measure.py    a policy at a load
    shapes.py     the same for traces that are made up, with other reuse, lengths and bursts
    report.py     tables, as Markdown
    __main__.py   the command

Every policy serves both roles as its authors have it. Loads are parts of the capacity: the highest speed of
the trace at which the bound (lab/simulator/bound/) is 99 % of the calls that are short enough to be in time.
"""
