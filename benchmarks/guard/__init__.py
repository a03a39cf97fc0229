"""Guards what a call costs: fails where it takes a tenth more instructions than was agreed.

    still_loop.py    an event loop without sockets and clock, whose runs can be repeated
    memory_wire.py   engines that answer from a script, and a client
    scenarios.py     the calls, and the answers to them
    gateway.py       what is guarded, beside what it is compared with:
    relay.py         the least that does the same, the yardstick
    bare_wire.py     what the wire itself costs, which is taken off both
    runs.py          all of them in one process
    callgrind.py     counts its instructions
    traced.py        says which functions did what
    figures.py, baseline.py, verdict.py    what it comes to, came to, and may come to

Time says little on a machine that others use; the number of instructions is the same there. As
it depends on versions of Python and of parsers, what is guarded is the ratio to a relay that is
measured in the same run.
"""
