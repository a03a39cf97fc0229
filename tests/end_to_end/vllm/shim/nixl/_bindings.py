from nixl_cu12._bindings import *  # type: ignore[import-not-found]
