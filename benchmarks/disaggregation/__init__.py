"""First token and pace of `always`, `never` and `auto`, over mixes of short and long prompts.

    .venv/bin/python -m benchmarks.disaggregation
    .venv/bin/python -m benchmarks.disaggregation --slow-motion 5     # on a busy machine

    fleet.py    one prefill and one decode engine, and a gateway for each rule
    load.py     clients that ask one after the other, and what they saw
    rounds.py   turns and medians
    chart.py    the picture, as SVG
    report.py   the table, as Markdown

Each rule has a gateway of its own, so that `auto` learns from its own calls only. The rules
take turns in every round on the same engines with the same prompts in the same order, so
what else the machine does hits all of them. Prompts differ, and no engine caches prefixes.
The engines' steps are given a length (fleet.py), which is more than they compute on a quiet
machine; in slow motion it is so on one that others use, too.
"""
