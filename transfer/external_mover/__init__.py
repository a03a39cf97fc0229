"""Backends whose bytes a library moves into memory that the peer only owns.

library.py    what such a library has to be able to do
backend.py    what it does not enforce: registration, bounds, epochs, deadlines, counts
owner.py, regions.py, wire.py    the peer's side, asked before and told after
"""
