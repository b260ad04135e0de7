"""The chat page of an exported model: its files, or one file with everything inside."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UnsupportedModel
from ..gguf.file import GGUFFile
from ..models.registry import Model, load_next_token_model
from ..replace_file import replace_bytes
from .files import SCRIPTS, Tell, describe, export_plan, script
from .words import chat_data

PAGE = ("index.html", "style.css", "page.js", "worker.js", "offline.js")
WORKER = (*SCRIPTS, "worker.js")
MOST_SINGLE = 60 << 20  # maximum bytes of weights in one file, which browsers load as text
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[\w-]+\.js";\n', re.MULTILINE)
_EXPORTED = re.compile(r"^export (?=(?:async |const |class |function ))", re.MULTILINE)
_EXPORTS = re.compile(r"^export \{[^}]*\};\n", re.MULTILINE)
_POLICY = re.compile(r'(?<=http-equiv="Content-Security-Policy" content=")[^"]*')


def export_web(
    file: GGUFFile, folder: Path, digest: str, context: int | None = None, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """Writes what `export_plan` writes, and the chat page; returns the manifest."""
    _chat_model(file)  # raises an error for models that cannot chat
    return export_plan(file, folder, digest, context, tell, PAGE)


def export_single_file(
    file: GGUFFile, target: Path, digest: str, context: int | None = None, tell: Tell = lambda _: None
) -> dict[str, Any]:
    """Writes the chat page with scripts, plans and weights inside; returns the manifest."""
    model = _chat_model(file)
    shards: list[bytes] = []

    def add(_: str, data: bytes) -> None:
        shards.append(data)
        if (size := sum(map(len, shards))) > MOST_SINGLE:
            raise UnsupportedModel(
                f"the weights take {size:,} bytes or more, and a single file has {MOST_SINGLE:,} at most; leave out "
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


def single_file(manifest: dict[str, Any], shards: Iterable[bytes]) -> str:
    """The page as one text. Its policy names its scripts and styles by digest, so nothing else runs."""
    page, style = script("page.js"), script("style.css")
    data = [
        f'<script type="application/json" id="manifest">{_inert(json.dumps(manifest, separators=(",", ":")))}</script>',
        *(f'<script type="text/plain" class="shard">{base64.b64encode(one).decode()}</script>' for one in shards),
        f'<script type="text/plain" id="worker">{bundle(WORKER)}</script>',
    ]
    policy = (
        f"default-src 'none'; script-src {_source(page)}; style-src {_source(style)}; worker-src blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    text = _POLICY.sub(lambda _: policy, script("index.html"))
    text = text.replace('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>")
    inline = "\n".join([*data, f'<script type="module">{page}</script>'])
    return text.replace('<script type="module" src="page.js"></script>', inline)


def bundle(names: Iterable[str]) -> str:
    """Joins modules into one script. Their top-level names must differ, and each may import only earlier modules."""
    texts = (_EXPORTED.sub("", _EXPORTS.sub("", _IMPORT.sub("", script(name)))) for name in names)
    return '"use strict";\n' + "".join(texts)


def _inert(text: str) -> str:
    """JSON without text that could end the HTML element that contains it."""
    return text.replace("<", "\\u003c")


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
