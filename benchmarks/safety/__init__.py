"""What safety costs, beyond a relay that has none of it.

    features.py     what is switched off, one by one, and how
    without.py      parts that leave their work out
    runs.py         one variant of the gateway in one process
    measured.py     instructions (callgrind) and CPU time of every variant
    costs.py        what a feature costs, of what was measured
    report.py       a table of docs/performance.md, written anew

The path is the guard's (`benchmarks/guard`): a gateway as `pdgate serve` builds it, with all of
its safety features, over connections in memory. Nothing of the product has a switch for this:
what users cannot switch off is left out by putting other parts together.
"""
