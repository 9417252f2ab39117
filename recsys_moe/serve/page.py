"""The page at `/`: static files that use the public routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import FastAPI, Request, Response

FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/parts.js": ("parts.js", "text/javascript"),
    "/people.js": ("people.js", "text/javascript"),
    "/page.svg": ("page.svg", "image/svg+xml"),
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Own files only, nothing inline, and no text becomes markup."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Serve the files without a key: they hold no data, and the page asks for the key."""
    for path, (name, kind) in FILES.items():
        content = files("recsys_moe.serve").joinpath(f"static/{name}").read_bytes()
        app.add_route(path, _handler(content, kind), methods=["GET"], include_in_schema=False)


def _handler(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=kind)

    return handle
