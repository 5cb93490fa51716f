"""Static files of the page: read once, sent with a tag of their content. Door: files of this package.

The policy lets the page load nothing but these files, and talk to nobody but its agent. It allows no script and no style
within a document, so that a text of another machine that gets into one by mistake does nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aiohttp import hdrs, web

FOLDER = Path(__file__).with_name("static")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".json": "application/json"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
    "base-uri 'none'; form-action 'none'"
)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file, as it is sent."""

    body: bytes
    tag: str
    content_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files of the page, by name."""
    return {
        path.name: StaticFile(
            body := path.read_bytes(), hashlib.sha256(body).hexdigest()[:20], TYPES[path.suffix]
        )
        for path in FOLDER.iterdir()
    }


def static_response(request: web.Request, name: str) -> web.Response:
    """The file of that name, or 304 if the client has it already. Raises HTTPNotFound."""
    found = static_files().get(name)
    if found is None:
        raise web.HTTPNotFound(text=f"the page has no file {name[:80]!r}")
    headers = {
        hdrs.ETAG: f'"{found.tag}"',
        # Browsers ask each time whether it is still the same: after an update it is another one.
        hdrs.CACHE_CONTROL: "no-cache",
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
    }
    if any(tag.value in (found.tag, "*") for tag in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    return web.Response(body=found.body, content_type=found.content_type, charset="utf-8", headers=headers)
