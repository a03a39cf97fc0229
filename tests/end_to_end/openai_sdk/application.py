"""Application of pdgate for the command lines of ASGI servers; PDGATE_CONFIG is its file."""

import os

from pdgate import create_app

# Where tests take only the name of this module, there is no file.
app = create_app(os.environ["PDGATE_CONFIG"]) if "PDGATE_CONFIG" in os.environ else None
