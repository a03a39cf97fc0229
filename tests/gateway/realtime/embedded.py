"""`python -m tests.gateway.realtime.embedded FILE`: the application of that configuration on uvicorn, its log as JSON on stderr."""

import sys

import uvicorn

from pdgate import create_app
from pdgate.gateway.logs import log_to_stderr

if __name__ == "__main__":
    log_to_stderr("info", "json")
    uvicorn.run(create_app(sys.argv[1]), port=0, log_config=None, http="h11", ws="wsproto")
