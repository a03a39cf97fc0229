"""How fast the transfer backends move KV between two processes, beside what is possible.

    bash tools/isolated.sh .venv/bin/python -m benchmarks.transfer --rounds 9
    bash benchmarks/kv_transfer.sh      the same and benchmarks.overlap, into RESULTS.md

    cases.py        how many bytes in how many pieces
    contenders.py   who is measured, and against which baseline
    ours.py         the two ends of a backend         bare.py    of memcpy and of a socket
    alone.py        of Mooncake and NIXL without what we enforce around them
    process.py      one end, as a process             pair.py    two of them, from the outside
    rounds.py       turns, statistics                 report.py  tables, results.py where they go

Only ratios within a round are worth anything on a machine that others use as well: in each
round every contender moves the same ranges right after its baseline, while the processes of
all others are stopped. What arrived is compared byte by byte after each measurement.
"""
