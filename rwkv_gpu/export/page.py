"""The chat page of an exported model: its files, or one file with everything inside."""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..models.registry import Model, load_next_token_model
from ..page import Page, assemble, files, policy
from ..replace_file import replace_bytes
from .files import SCRIPTS, Tell, describe, export_plan, script
from .words import chat_data

WORKER = (*SCRIPTS, "worker.js")
MAX_SINGLE = 60 << 20  # maximum bytes of weights in one file, which browsers load as text
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[\w-]+\.js";\n', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=(?:async |const |class |function ))", re.MULTILINE)
_EXPORTS = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_LINK = re.compile(r'<link rel="(?:icon|manifest)"[^>]*>\n')


def export_web(
    file: GGUFFile, folder: Path, digest: str, context: int | None = None, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """Writes what `export_plan` writes, and the chat page; returns the manifest."""
    _chat_model(file)  # raises an error for models that cannot chat
    return export_plan(file, folder, digest, context, tell, page_files())


def export_single_file(
    file: GGUFFile, target: Path, digest: str, context: int | None = None, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """Writes the chat page with scripts, plans and weights inside; returns the manifest."""
    model = _chat_model(file)
    shards: list[bytes] = []

    def add(_: str, data: bytes) -> None:
        shards.append(data)
        if (size := sum(map(len, shards))) > MAX_SINGLE:
            raise UnsupportedModel(
                f"the weights take {size:,} bytes or more, and a single file has {MAX_SINGLE:,} at most; leave out "
                "--single-file"
            )

    manifest = describe(file, model, digest, context, add, tell)
    replace_bytes(target, single_file(manifest, shards).encode("utf-8", "surrogatepass"), private=False)
    return manifest


def _chat_model(file: GGUFFile) -> Model:
    """The model of a file, if a page can chat with it."""
    try:
        model = load_next_token_model(file)
        chat_data(file.metadata, model.vocabulary)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"a page cannot chat with this model: {error}; `export plan` writes no page") from None
    return model


def page_files() -> dict[str, bytes]:
    """The files of the page by name: the page of the server, whose model is in a worker."""
    page = assemble(script("api.js"))
    found = {name.removeprefix("/"): data for name, (data, _) in files().items() if name != "/sw.js"}
    scripts = {name: script(name).encode() for name in ("worker.js", "offline.js")}
    return {**found, **scripts, "index.html": _html(page, page.directives).encode()}


def single_file(manifest: dict[str, Any], shards: Iterable[bytes]) -> str:
    """The page as one text. Its policy names its script and style by digest, so nothing else runs."""
    page = assemble(script("api.js"))
    data = [
        f'<script type="application/json" id="manifest">{_inert(json.dumps(manifest, separators=(",", ":")))}</script>',
        *(f'<script type="text/plain" class="shard">{base64.b64encode(one).decode()}</script>' for one in shards),
        f'<script type="text/plain" id="worker">{bundle(WORKER)}</script>',
    ]
    outside = ("connect-src", "manifest-src")
    directives = {name: value for name, value in page.directives.items() if name not in outside}
    html = _LINK.sub("", _html(page, {**directives, "img-src": "data:", "worker-src": "blob:"}))
    return html.replace("<script>", "\n".join([*data, "<script>"]), 1)


def _html(page: Page, directives: Mapping[str, str]) -> str:
    """The page with its policy inside, where a server of static files sends none."""
    inside = {name: value for name, value in directives.items() if name != "frame-ancestors"}  # only for headers
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy(inside)}">'
    return page.html.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}', 1)


def bundle(names: Iterable[str]) -> str:
    """Joins modules into one script. Their top-level names must differ, and each may import only earlier modules."""
    texts = (_EXPORTED.sub("", _EXPORTS.sub("", _IMPORT.sub("", script(name)))) for name in names)
    return '"use strict";\n' + "".join(texts)


def _inert(text: str) -> str:
    """JSON without text that could end the HTML element that contains it."""
    return text.replace("<", "\\u003c")
