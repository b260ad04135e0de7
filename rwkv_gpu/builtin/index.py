"""Reads the index of the documentation, help.tsv, which `python -m training.help_index` makes.

Which families of models are supported comes from the registry: what the index says of a family depends on that.
"""

from collections.abc import Collection
from pathlib import Path

from .search import Passage, Search
from .words import words

INDEX = Path(__file__).with_name("help.tsv")
ARCHITECTURES = "{architectures}"  # stands in a passage for how many are supported, and the best known of them
UNNAMED = "?"  # stands for an architecture whose name is not known
WELL_KNOWN = ("llama", "qwen2", "qwen3", "gemma3", "phi3", "deepseek2", "gpt-oss", "rwkv7", "mamba2")
GET = "`rwkv-gpu pull hf.co/OWNER/NAME:Q4_K_M` gets one from Hugging Face."


def read(architectures: Collection[str] = (), path: Path = INDEX) -> tuple[Search, dict[str, float]]:
    """From the index: lines of everyday words, of synonyms, of small talk; then passages and families of models."""
    everyday, synonyms, small_talk, *lines = path.read_text(encoding="utf-8").splitlines()
    counts = (part.split(":") for part in everyday.split())
    passages = [_passage(line.split("\t"), architectures) for line in lines]
    search = Search(passages, _groups(synonyms), small_talk.split("|"))
    return search, {word: int(count) / 1e6 for word, count in counts}


def _groups(line: str) -> dict[str, frozenset[str]]:
    """The words that a word may stand for, from groups that are separated by tabs."""
    found: dict[str, frozenset[str]] = {}
    for group in line.split("\t"):
        alike = frozenset(group.split())
        for word in alike:
            found[word] = found.get(word, frozenset()) | alike
    return found


def _passage(cells: list[str], architectures: Collection[str]) -> Passage:
    """A passage of the docs, or one about a family of models: `model`, its names, its architectures."""
    if cells[0] == "model":
        return _family(cells[1].split(", "), cells[2].split(), architectures)
    weight, asked, also, text = cells
    known = ", ".join(f"`{name}`" for name in WELL_KNOWN if name in architectures)
    text = text.replace(ARCHITECTURES, f"{len(architectures)} architectures are supported, among them {known}")
    return Passage(float(weight), tuple(asked.split("|")), frozenset(also.split()), text)


def _family(names: list[str], needs: list[str], architectures: Collection[str]) -> Passage:
    """What there is to say about a family of models, by the architectures that there are."""
    there = [f"`{need}`" for need in needs if need in architectures]
    missing = [f"`{need}`" for need in needs if need not in architectures]
    if not needs:
        text = f"No, it does not run {names[0]}: only language models in GGUF files that generate text are supported."
    elif not missing:
        text = f"Yes, it runs {names[0]}: GGUF files of the architecture {' or '.join(there)} are supported. {GET}"
    elif needs == [UNNAMED]:
        text = f"No, {names[0]} is not among the supported models: docs/models.md lists them."
    elif not there:
        text = (
            f"No, it does not run {names[0]}: the architecture {' or '.join(missing)} is not supported in this version."
        )
    else:
        text = (
            f"{names[0]}: the architectures {', '.join(there)} are supported, {', '.join(missing)} not in this version."
        )
    forms = ("{}", "does {} work", "can I run {}", "is {} supported", "{} support")
    asked = tuple(form.format(name) for name in names for form in forms)
    also = frozenset(words("model models run load architecture compatible"))
    return Passage(1.0, asked, also, text, frozenset(words(" ".join(names))))
