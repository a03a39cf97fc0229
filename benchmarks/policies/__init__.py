"""Our policies and those of peers on the conversation trace, 8 prefill and 8 decode engines, simulated.

    .venv/bin/python -m benchmarks.policies                    # minutes; writes its part of RESULTS.md
    .venv/bin/python -m benchmarks.policies --calls 2000 --dry # quick, prints only

    measure.py    a policy at a load
    capacity.py   the load at which a policy's goodput falls below GOOD
    report.py     tables, as Markdown
    __main__.py   the command

Every policy serves both roles as its authors have it. Loads are parts of the capacity of ours: the load
above which fewer than 90 % of calls are in time.
"""
