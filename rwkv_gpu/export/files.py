"""Writes an exported model: a manifest, shards of data, and the scripts that run it in a browser."""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..engine.state_file import fingerprint
from ..errors import BadInput, UnsupportedModel
from ..gguf.file import GGUFFile
from ..gguf.sample import check_sample
from ..models.registry import Model, load_next_token_model
from ..replace_file import replace_bytes
from ..text.tokenizer import load_tokenizer
from ..writer_lock import WriterLock
from .plans import Recorded, record
from .words import chat_data, tokenizer_data

FORMAT = 1  # version of the manifest; `FORMAT` in web/manifest.js
SHARD = 64 << 20  # bytes of a shard at most
MANIFEST = "model.json"
LEFT = re.compile(r"shard-\d{3,}-[0-9a-f]{12}\.bin|\.shard-.*\.bin\.saving-[0-9a-f]{16}")  # shards, and unfinished ones
PART = re.compile(r"(?:^|(?<=\n))(?=\S).*?(?:\Z|(?=\n(?:@|fn|const|var|struct|alias|override)\b)\n)", re.DOTALL)
# The library: rwkv-gpu.js and its imports.
SCRIPTS = (
    "manifest.js",
    "engine.js",
    "tokenizer.js",
    "shards.js",
    "conversation.js",
    "reader.js",
    "chat.js",
    "rwkv-gpu.js",
)


Tell = Callable[[Sequence[Mapping[str, Any]]], None]


def export_plan(
    file: GGUFFile,
    folder: Path,
    digest: str,
    context: int | None = None,
    tell: Tell = lambda _: None,
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> dict[str, Any]:
    """Writes the manifest, the shards, the scripts and `more` files to a folder; returns the manifest.

    `tell` gets the variants of the plan and their requirements before the first shard is written. Only one process at a
    time exports to a folder. Shards left by an earlier or killed export are removed.
    """
    model = load_next_token_model(file)  # raises an error for other models, before the folder is made
    check_sample(file)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = WriterLock(folder / MANIFEST)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written: {error.strerror}; give another folder") from None
    with lock:

        def write(name: str, data: bytes) -> None:
            replace_bytes(folder / name, data, lock=lock, private=False)

        manifest = describe(file, model, digest, context, write, tell)
        text = json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)
        for name, data in {**{name: script(name).encode() for name in SCRIPTS}, **more}.items():
            write(name, data)
        write(MANIFEST, text.encode("utf-8", "surrogatepass"))  # written last: a folder that has it is complete
        _remove_shards(folder, {one["file"] for one in manifest["shards"]})
    return manifest


def _remove_shards(folder: Path, used: Set[str]) -> None:
    """Removes shards of other exports from a folder, and unfinished ones."""
    for path in folder.iterdir():
        if LEFT.fullmatch(path.name) and path.name not in used:
            with suppress(OSError):  # on Windows, a web server may keep it open
                path.unlink()


def describe(
    file: GGUFFile,
    model: Model,
    digest: str,
    context: int | None,
    write: Callable[[str, bytes], None],
    tell: Tell,
) -> dict[str, Any]:
    """Records a model, passes the variants to `tell` and each shard to `write`, and returns the manifest."""
    words = tokenizer_data(file.metadata)
    chat = None
    with suppress(UnsupportedModel):  # a page needs a tokenizer; a program may not
        chat = chat_data(file.metadata, model.vocabulary)
    recorded = record(file, model, context, sorted(load_tokenizer(file.metadata).suppressed))
    variants = [{"bytes": _memory(recorded, one), **one} for one in recorded.variants]
    tell(variants)
    shards = []
    for number, data in enumerate(_shards(recorded)):
        digest_of = hashlib.sha256(data).hexdigest()
        name = f"shard-{number:03}-{digest_of[:12]}.bin"
        write(name, data)
        shards.append({"file": name, "bytes": len(data), "sha256": digest_of})
    texts: dict[str, int] = {}
    shaders = [{**one, "source": _parts(one["source"], texts)} for one in recorded.shaders]
    return {
        "kind": "rwkv-gpu export",
        "format": FORMAT,
        "model": {
            "name": _name(file),
            "architecture": file.str("general.architecture"),
            "fingerprint": fingerprint(file),
            "digest": digest,
            "vocabulary": model.vocabulary,
            "context": recorded.config.context,
        },
        "tokenizer": words,
        "chat": chat,
        "buffers": _buffers(recorded),
        "shards": shards,
        "texts": list(texts),
        "shaders": shaders,
        "states": recorded.states,
        "caches": recorded.caches,
        "sampler": recorded.sampler,
        "variants": variants,
    }


def script(name: str) -> str:
    """The text of a script."""
    return resources.files("rwkv_gpu.export").joinpath("web", name).read_text(encoding="utf-8")


def _name(file: GGUFFile) -> str:
    name = file.metadata.get("general.name")
    return name if isinstance(name, str) and name else Path(file.path).stem


def _parts(source: str, texts: dict[str, int]) -> list[int]:
    """Splits a shader into texts that several shaders share; returns their numbers.

    The first line of each text is not indented.
    """
    lines = re.sub(r"\s*\n\s*\n|[ \t]+(?=\n)", "\n", source)
    return [texts.setdefault(text, len(texts)) for text in PART.findall(lines)]


def _buffers(recorded: Recorded) -> list[dict[str, Any]]:
    """Describes each buffer. If it has data, its place is counted over all shards."""
    rows, at = [], 0
    for buffer in recorded.buffers:
        row: dict[str, Any] = {"bytes": buffer.nbytes}
        if buffer in recorded.device.uniforms:
            row["uniform"] = True
        if buffer in recorded.device.written:
            row["data"], at = at, at + buffer.nbytes
        rows.append(row)
    return rows


def _memory(recorded: Recorded, variant: dict[str, Any]) -> int:
    """Bytes of the buffers that the plans of a variant use."""
    used = {one["buffer"] for one in (*recorded.states, *recorded.caches)}
    for plan in variant["plans"]:
        used |= {plan["step"]["buffer"], *(one["buffer"] for one in plan["outputs"].values())}
        used |= {buffer for _, _, bound in plan["dispatches"] for _, buffer, _, _ in bound}
    return sum(recorded.buffers[number].nbytes for number in used)


def _shards(recorded: Recorded) -> Iterator[bytes]:
    """The data of all buffers one after the other, in pieces."""
    piece = bytearray()
    for buffer in recorded.buffers:
        if buffer not in recorded.device.written:
            continue
        for start in range(0, buffer.nbytes, SHARD):
            piece += buffer.handle[start : start + SHARD].data
            while len(piece) >= SHARD:
                yield bytes(piece[:SHARD])
                del piece[:SHARD]
    if piece:
        yield bytes(piece)
