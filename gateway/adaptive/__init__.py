"""Engines with role both serve the side that needs them more, as the load moves.

    record.py   what one process says and all others do, in a store that they share
    sides.py    who serves what here; who changes sides finishes the old work first
    leader.py   which process decides: the one whose name is in the store, for as long as it is heard of
    adapting.py looks twice a second, decides every few seconds (scheduling/roles.py)
    routes.py   on /admin/roles

It needs nothing of the engines: they can serve both, and get calls of one kind.
"""
