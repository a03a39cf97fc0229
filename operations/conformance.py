"""The former name of `pdgate.lab.conformance`, which warns; it goes with 0.3."""

from warnings import warn

from pdgate.lab.conformance import *

warn(
    "pdgate.operations.conformance is called pdgate.lab.conformance now",
    DeprecationWarning,
    stacklevel=2,
)
