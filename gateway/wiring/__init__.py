"""Chooses the implementations and puts the gateway together; nobody else does.

settings --> instances, policies --> scheduler --.
         --> forwarders ----------------------- execution --> service --> front end
         --> upstream --------------------------'                          |
         --> prober, books, debug ------------------------> FastAPI app ---'

    parts.py        each part, made of what the settings say of it
    build.py        the parts, put together
    background.py   what is done besides serving calls

What not every gateway has is imported where it is made: what is imported stays in memory.
"""

from pdgate.gateway.wiring.build import build

__all__ = ["build"]
