"""Wiring: the only place that chooses implementations and puts the gateway together.

settings --> instances, policies --> scheduler --.
         --> forwarders ----------------------- execution --> service --> front end
         --> upstream --------------------------'                          |
         --> prober, stats, debug ------------------------> FastAPI app ---'

    parts.py        each part, made of what the settings say of it
    components.py   what there is beside the call path (gateway/component.py)
    on_demand.py    features of which a gateway has those that it is asked for
    build.py        all of it, put together
    live.py         what of the call path a reload changes

What not every gateway has is imported where it is made: what is imported stays in memory.
"""

from pdgate.gateway.wiring.build import build

__all__ = ["build"]
