"""The chat page: one HTML file, assembled from the files of this folder by a server at its start, and by `export web`.

It loads nothing else. Its security policy forbids foreign scripts, and connections to other servers.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
# In this order: each file uses those before it.
MEDIA_TYPES = {".webmanifest": b"application/manifest+json", ".js": b"text/javascript", ".png": b"image/png"}
SCRIPTS = (
    "dom",
    "highlight",
    "math",
    "diagram",
    "markdown",
    "store",
    "imports",
    "api",
    "documents",
    "images",
    "render",
    "dialogs",
    "settings",
    "models",
    "panel",
    "app",
)


@dataclass(frozen=True)
class Page:
    """The HTML, and the directives of its content security policy."""

    html: str
    directives: dict[str, str]

    @property
    def headers(self) -> dict[str, str]:
        """Response headers of the page."""
        return {
            "content-security-policy": policy(self.directives),
            "referrer-policy": "no-referrer",
            "x-frame-options": "DENY",
            "cross-origin-opener-policy": "same-origin",
        }


def assemble(api: str | None = None) -> Page:
    """Assembles the page; `api` is a script that takes the place of api.js."""
    style = _read("style.css")
    scripts = (api if api and name == "api" else _read(f"{name}.js") for name in SCRIPTS)
    script = '\n"use strict";\n' + "\n".join(scripts)
    html = _read("index.html").replace("/* style.css */", style).replace("/* script */", script)
    directives = {
        "default-src": "'none'",
        "script-src": f"'{_digest(script)}'",
        "style-src": f"'{_digest(style)}'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "media-src": "data:",
        "manifest-src": "'self'",
        "worker-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return Page(html, directives)


def policy(directives: Mapping[str, str]) -> str:
    """A content security policy as text."""
    return "; ".join(f"{name} {value}" for name, value in directives.items())


def files() -> dict[str, tuple[bytes, bytes]]:
    """Contents and media types, by path, of what browsers need to show an icon and to install the page."""
    found = {"/favicon.svg": ((HERE / "favicon.svg").read_bytes(), b"image/svg+xml")}
    for path in sorted((HERE / "installed").iterdir()):
        if path.suffix in MEDIA_TYPES:
            found[f"/{path.name}"] = path.read_bytes(), MEDIA_TYPES[path.suffix]
    return found


def _read(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
