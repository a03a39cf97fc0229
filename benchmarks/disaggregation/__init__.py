"""First token and pace of `always`, `never` and `auto`, over mixes of short and long prompts.

    .venv/bin/python -m benchmarks.disaggregation

    fleet.py    one prefill and one decode engine, and a gateway for each rule
    load.py     clients that ask one after the other, and what they saw
    rounds.py   turns and medians
    chart.py    the picture, as SVG
    report.py   the table, as Markdown

Each rule has a gateway of its own, so that `auto` learns from its own calls only. The rules
take turns in every round on the same engines with the same prompts in the same order, so
what else the machine does hits all of them. Prompts differ, and no engine caches prefixes.
"""
