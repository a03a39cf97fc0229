"""A directory by its name and options, as a configuration or a command line says them.

    opened("etcd", ["urls=http://10.0.0.1:2379"])

    [project.entry-points."pdgate.directories"]
    acme = "pdgate_acme:AcmeDirectory"

Found by entry point. What is declared is called with the options that it takes by keyword only
(protocols/options.py), and connects to nothing before it is used.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pdgate.cluster.directory import Directory
from pdgate.protocols import options, plugins
from pdgate.protocols.extras import install

KIND = "directory"
# Package that is missing -> the extra of ours that brings it.
EXTRAS = {"dns": "dns", "redis": "redis"}


class CannotOpen(ValueError):
    """The message says why, in one line, for operators."""


def opened(name: str, words: Sequence[str], implied: Mapping[str, str] | None = None) -> Directory:
    """`implied`: options from elsewhere, which the words go over; those it has no use for are left.

    Raises CannotOpen: for a name that no package declares, listing those there are, too.
    """
    try:
        return _opened(name, words, implied or {})
    except LookupError as error:
        raise CannotOpen(str(error.args[0])) from None
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise CannotOpen(
            f"the directory {name!r} needs more: {install(EXTRAS[error.name])}"
        ) from None
    except ValueError as error:
        raise CannotOpen(str(error)) from None


def _opened(name: str, words: Sequence[str], implied: Mapping[str, str]) -> Directory:
    one = plugins.find(plugins.DIRECTORIES, KIND, name)
    make: Any = one.load()
    given = options.read(KIND, name, make, words)
    known = options.kinds(make)
    merged = {**{key: text for key, text in implied.items() if text and key in known}, **given}
    if missing := [key for key in options.needed(make) if key not in merged]:
        raise CannotOpen(f"the directory {name!r} needs the option {missing[0]!r}")
    directory = make(**merged)
    if not isinstance(directory, Directory):
        raise CannotOpen(f"{one.value} makes no Directory")
    return directory
