"""Configuration: a TOML file, and flags over it.

TOML file --.
            +--> load() --> Settings (frozen) --> wiring
flags ------'      '--> ConfigError: one sentence per wrong key

settings    the tree of keys, their types and defaults
instances   how one engine is written down, and the records that come of it
complaints  makes sentences of what pydantic found
checks      do the protocols and policies exist, and can they do what is asked?
load        brings it together
"""

from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.load import load
from pdgate.gateway.config.settings import Settings

__all__ = ["ConfigError", "Settings", "load"]
