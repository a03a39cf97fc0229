"""For all tests."""

import gc


def pytest_collection_finish() -> None:
    """What was imported for them stays: each full look through it for garbage would stop an event
    loop, and with it the answers of a test's engines, for a second or more."""
    gc.collect()
    gc.freeze()
