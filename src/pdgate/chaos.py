"""The former name of `pdgate.lab.chaos`, which warns; it goes with 0.3."""

from warnings import warn

from pdgate.lab.chaos import *
from pdgate.lab.processes import ProcessFailed

ProgramFailed = ProcessFailed

warn("pdgate.chaos is called pdgate.lab.chaos now", DeprecationWarning, stacklevel=2)
