"""The catalogue of popular models: a short name such as `qwen3.5:4b` stands for a file of the Hugging Face hub.

Other spellings of a name are accepted: `qwen3.5` is the first model of a family, `qwen3:4b-q8_0` another quantisation,
and `Qwen3-4B-Instruct` the same as `qwen3:4b`.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from ..errors import BadInput
from . import hub_names

MAX_BYTES = 4 << 20  # size limit of a catalogue
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*(?::[a-z0-9][a-z0-9.-]*)?", re.ASCII)
QUANTISATION = re.compile(r"(?:iq|tq|q)\d\w*|[fb]?f16|f32|bf16|fp16|mxfp4|nvfp4", re.ASCII | re.IGNORECASE)
FILLER = {"instruct", "it", "chat", "gguf", "latest", "preview"}  # words that some spellings of a name add or omit
STEM = re.compile(r"[a-z]+(?=\d)|[a-z]{6,}")  # start of a family's name: gemma, falcon
LONG_STEM = 4  # minimum letters: shorter stems resemble too many other words
KINDS = "chat", "embedding", "reranker"


@dataclass(frozen=True)
class Entry:
    """A model of the catalogue."""

    name: str
    repository: str
    file: str
    nbytes: int
    parameters: float  # billions
    licence: str
    context: int
    strengths: str
    architecture: str = ""
    active: float | None = None  # for mixtures of experts: billions of parameters that a token reads
    thinking: bool = False
    tools: bool = False
    vision: bool = False
    mmproj: str | None = None  # the file with the image part
    kind: str = "chat"
    recommended: int | None = None  # the first choice for devices with this many GB of memory

    @property
    def family(self) -> str:
        """The name before the colon."""
        return self.name.partition(":")[0]

    @property
    def hub_name(self) -> str:
        """The name on the hub, with the file."""
        return f"hf.co/{self.repository}:{self.file}"

    @property
    def read_bytes(self) -> float:
        """Bytes of weights that a token reads."""
        return self.nbytes * (self.active or self.parameters) / self.parameters


KEYS = {"bytes" if field.name == "nbytes" else field.name: field for field in fields(Entry)}


class Catalogue:
    """Models by short name."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._named: dict[str, Entry] = {}
        self._families: dict[str, Entry] = {}
        self._squashed: dict[str, Entry] = {}
        for entry in self.entries:
            self._named.setdefault(entry.name, entry)
            self._families.setdefault(entry.family, entry)
            self._squashed.setdefault(squashed(entry.name), entry)
        self._stems = {hub_names.BUILTIN, *(stem[0] for family in self._families if (stem := STEM.match(family)))}

    def entry(self, name: str) -> Entry | None:
        """The model that a name refers to, in any accepted spelling without a quantisation."""
        plain = hub_names.LIBRARY.sub("", name.lower()).removesuffix(":latest")
        return self._named.get(plain) or self._families.get(plain) or self._squashed.get(squashed(plain))

    def hub_name(self, name: str) -> str | None:
        """The name on the hub of a model with a short name; None if the catalogue has none."""
        if (entry := self.entry(name)) is not None:
            return entry.hub_name
        before, dash, quantisation = name.rpartition("-")
        if dash and QUANTISATION.fullmatch(quantisation) and (entry := self.entry(before)) is not None:
            tag = quantisation.upper().replace("FP16", "F16")
            return entry.hub_name if hub_names.is_meant(entry.file, tag) else f"hf.co/{entry.repository}:{tag}"
        return None

    def near(self, name: str) -> list[str]:
        """Known names that resemble an unknown one, the most similar first."""
        plain = name.lower()
        family = [entry.name for entry in self.entries if entry.family == plain.partition(":")[0]]
        similar = difflib.get_close_matches(plain, [*self._named, *self._families, hub_names.BUILTIN], 3, 0.7)
        stem = self._stem_near(plain)
        related = [entry.name for entry in self.entries if stem and entry.family.startswith(stem)]
        return list(dict.fromkeys([*similar, *family, *related]))[:3]

    def resembles(self, word: str) -> bool:
        """True for the start of a family's name, such as gemma, a misspelt one, or a word with one: codellama."""
        plain = word.lower()
        return self._stem_near(plain) is not None or any(
            stem in plain for stem in self._stems if len(stem) >= LONG_STEM
        )

    def _stem_near(self, word: str) -> str | None:
        misspelt = difflib.get_close_matches(word, [stem for stem in self._stems if len(stem) > LONG_STEM], 1, 0.85)
        return word if word in self._stems else misspelt[0] if misspelt else None


def squashed(name: str) -> str:
    """A name without separators and words that spellings add or omit: qwen34b for Qwen3-4B-Instruct."""
    return "".join(word for word in re.split(r"[^a-z0-9.]+", name.lower()) if word not in FILLER)


def catalogue_of(source: str | os.PathLike[str] | None) -> Catalogue:
    """The models of a user's catalogue, a file or URL, and then those of the package."""
    return packaged() if source is None else _with_own(os.fspath(source))


@cache
def _with_own(source: str) -> Catalogue:
    own = parsed(_text(source), source).entries
    names = {entry.name for entry in own}
    return Catalogue([*own, *(entry for entry in packaged().entries if entry.name not in names)])


def _text(source: str) -> str:
    """The text of a file or URL, if it is not too long."""
    import http.client  # with TLS: only a catalogue from a URL needs them
    import urllib.request

    from .repository import PATIENCE

    try:
        if re.match(r"https?://", source):
            with urllib.request.urlopen(source, timeout=PATIENCE) as answer:
                data = answer.read(MAX_BYTES + 1)
        else:
            with open(source, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise BadInput(f"the catalogue {source} has more than {MAX_BYTES >> 20} MiB")
        return str(data.decode())
    except UnicodeDecodeError:
        raise BadInput(f"the catalogue {source} is not UTF-8 text") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise BadInput(f"the catalogue {source} cannot be read: {reason}") from None


@cache
def packaged() -> Catalogue:
    """The catalogue that ships with the package."""
    return parsed(resources.files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8"), "catalogue.toml")


def parsed(text: str, source: str) -> Catalogue:
    """Reads a catalogue in TOML. `source` names it in errors."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadInput(f"{source} is not a catalogue in TOML: {error}") from None
    models = data.pop("model", None)
    if data or not isinstance(models, list) or not models:
        raise BadInput(f"{source} is not a catalogue: it must consist of [[model]] tables")
    entries = [_entry(model, f"{source}, model {number}") for number, model in enumerate(models, 1)]
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise BadInput(f"{source} has the name {twice} twice")
    return Catalogue(entries)


def _entry(model: Any, where: str) -> Entry:
    """Checks the keys and types of one model."""
    if not isinstance(model, dict):
        raise BadInput(f"{where} is not a table")
    if unknown := next((key for key in model if key not in KEYS), None):
        raise BadInput(f"{where} has an unknown key {unknown!r}; known: {', '.join(KEYS)}")
    for key, value in model.items():
        if not _fits(key, value):
            raise BadInput(f"{where}: {key} is {value!r}, which is not {_expected(key)}")
    try:
        entry = Entry(**{KEYS[key].name: value for key, value in model.items()})
    except TypeError:
        missing = next(key for key, field in KEYS.items() if field.default is MISSING and key not in model)
        raise BadInput(f"{where} lacks {missing}") from None
    if not NAME.fullmatch(entry.name) or not hub_names.REPOSITORY.fullmatch(entry.repository):
        raise BadInput(f"{where}: name must be like qwen3:4b, and repository OWNER/NAME")
    if not hub_names.is_hub_name(entry.hub_name) or not entry.file.endswith(".gguf") or ".." in entry.file:
        raise BadInput(f"{where}: file is {entry.file!r}; it must name a GGUF file of the repository")
    return entry


def _expected(key: str) -> str:
    if key == "kind":
        return f"one of {', '.join(KINDS)}"
    kind = str(KEYS[key].type)
    return next(text for name, text in TYPES if name in kind)


TYPES = (("bool", "true or false"), ("float", "a positive number"), ("int", "a positive whole number"), ("str", "text"))


def _fits(key: str, value: object) -> bool:
    """True if a value has the type of its key."""
    expected = _expected(key)
    if key == "kind":
        return value in KINDS
    if expected == "true or false":
        return isinstance(value, bool)
    if expected == "text":
        return isinstance(value, str) and value.isprintable() and len(value) <= 200
    allowed = int if expected == "a positive whole number" else int | float
    return isinstance(value, allowed) and not isinstance(value, bool) and 0 < value < 1e15
