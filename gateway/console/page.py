"""The page itself: files of this package, for everybody, as there is no secret in them.

The page asks for the admin token and sends it with what it asks for (gateway/admin/live.py). It
needs nothing from elsewhere, and its policy lets the browser load nothing from elsewhere, to run no
script but these files, and to show the page in no other's frame.

Source: Content Security Policy Level 3.
"""

from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from pdgate.protocols.errors import NotFound

PATH = "/console"
FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Another version of the gateway has other files under the same names.
    "cache-control": "no-cache",
}


def routes() -> APIRouter:
    """Reads the files once."""
    files = {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix in TYPES}
    router = APIRouter(include_in_schema=False)

    @router.get(PATH)
    async def to_the_folder() -> Response:
        # Relative, so that it holds behind a proxy that puts something before our paths.
        return RedirectResponse("console/", status_code=307)

    @router.get(PATH + "/")
    @router.get(PATH + "/{name}")
    async def file(name: str = "index.html") -> Response:
        if name not in files:
            raise NotFound(f"the console has no file {name!r}")
        media_type = TYPES[Path(name).suffix]
        return Response(files[name], headers={**HEADERS, "content-type": media_type})

    return router
