"""Offline bound: how many calls of a trace a fleet can serve in time at most, whatever the policy.

    needs.py     what each call takes of the engines at least, with perfect knowledge
    windows.py   of prefill, what fits between a call's coming and its deadline, with no end of cache
    prices.py    of both sides and of the cache together: a price for each, by which no call is worth
                 more than it brings
    limit.py     the least of these, and the capacity that follows from it

Both are relaxations, so no run exceeds either. Calls are divisible work that any engine of the side
may do, several at a time; transfers and queues cost nothing; the cache is one for all engines, with
every block that is worth its place. What remains is work, time, and room.
"""

from pdgate.lab.simulator.bound.limit import SERVED, Bound, bound, capacity

__all__ = ["SERVED", "Bound", "bound", "capacity"]
