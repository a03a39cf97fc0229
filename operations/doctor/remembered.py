"""Engine ids of the last run, in a file: an id that has survived a restart is pinned.

{"http://10.0.0.1:8100": {"engine_id": "...", "started": 1789.5}}
"""

import json
from collections.abc import Mapping
from pathlib import Path

Ids = Mapping[str, tuple[str, float]]
"""URL of an engine -> its id, and what is another for each start of its process."""


def read(path: Path) -> Ids:
    """Empty before the first run. Raises ValueError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
    try:
        return {
            url: (str(entry["engine_id"]), float(entry["started"]))
            for url, entry in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} was not written by pdgate doctor --remember") from None


def write(path: Path, before: Ids, found: Ids) -> None:
    """Those that did not answer stay as they were. Raises OSError."""
    known = {**before, **found}
    told = {url: {"engine_id": name, "started": started} for url, (name, started) in known.items()}
    path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
