"""Calls wait here for their turn, before an engine is chosen for them.

urgency.py   what a client says of it, and what its key makes of that
gate.py      the waiting: who may begin is decided in scheduling/admission/
"""
