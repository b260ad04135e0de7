"""Makes the index of the documentation that the built-in model quotes: everyday words, then a passage a line.

    python -m training.help_index

A passage is a weight, the words of the question that it answers, other words for it, words that may stand for those of
the question, and the text that is quoted. docs/cli.md holds `--help`.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rwkv_gpu.builtin.help import INDEX, words

ROOT = Path(__file__).resolve().parent.parent
SYNONYMS = Path(__file__).with_name("synonyms.txt")
FORMS = Path(__file__).with_name("help_forms.txt")
EVERYDAY = Path(__file__).with_name("everyday.txt")
PAGES = ("docs/chat.md", "docs/devices.md", "docs/troubleshooting.md", "docs/models.md")
_REFERS = re.compile(
    r"(It|They|So|Those|These|This|That|What|One|Where|Each|Every one|All|Both|There|On the host|Without|Part)\b"
)  # to what stands before
LENGTHS = (30, 260)  # characters of a passage
Row = tuple[float, str, str, str]


def synonyms() -> dict[str, set[str]]:
    """The words that a word may stand for, by their stems."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in SYNONYMS.read_text(encoding="utf-8").splitlines():
        group = set() if line.startswith("#") else set(words(line.replace('"', "")))
        for word in group:
            found[word] |= group
    return found


def forms() -> dict[str, str]:
    """How people ask for each entry of docs/questions.md."""
    blocks = re.split(r"^= ", FORMS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    parts = (block.strip().partition("\n") for block in blocks)
    return {title: re.sub(r"[?{}|\[\]]+", " ", rest) for title, _, rest in parts}


def questions(text: str) -> Iterator[Row]:
    """The entries of docs/questions.md: a heading, other words in a comment, an answer."""
    asked = forms()
    for title, more, answer in re.findall(r"^### (.+)\n(?:<!-- also: (.*) -->\n)?(.+)$", text, re.MULTILINE):
        named = re.findall(r"(?<![\w./-])(?:--[a-z][\w-]*|/[a-z]+)", answer[:30])
        yield 1.0, f"{title} {' '.join(named[:1])}", f"{more} {asked[title]} {answer}", answer


def commands(text: str) -> Iterator[Row]:
    """What `--help` says: every command, and every option with the commands that have it."""
    options: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, page in re.findall(r"^## rwkv-gpu (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        usage, _, rest = page.partition("Options:")
        says = _sentence(" ".join(line.strip() for line in usage.strip().split("\n\n")[1].splitlines()))
        example = re.search(r"Example: (.+)", page)
        shown = f" Example: `{example[1].strip()}`." if example else ""
        yield 0.95, f"rwkv-gpu {name} command", says, f"`rwkv-gpu {name}`: {says}{shown}"
        for flags, told in _options(rest):
            options[flags, told].append(name)
    for (flags, told), names in options.items():
        shown = ", ".join(f"`{flag}`" for flag in re.findall(r"-[\w-]+", flags))
        where = f" of `rwkv-gpu {names[0]}`" if len(set(names) - {"run"}) == 1 else ""
        yield (
            0.8,
            " ".join(re.findall(r"(?<!\S)-[\w-]+", flags.replace("/", " "))),
            f"{told} {' '.join(names)}",
            f"{shown}{where}: {_sentence(told)}",
        )


def _options(text: str) -> Iterator[tuple[str, str]]:
    """The flags of each option, and what it does."""
    for block in re.split(r"\n(?= {6}-| {4}\w)", text.split("Example:")[0]):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines or not lines[0].startswith("      -"):
            continue
        head, _, told = lines[0].strip().partition("  ")
        told = " ".join([told.strip(), *(line.strip() for line in lines[1:])])
        default = re.search(r"default: ([^;\]]+)", told)
        told = re.sub(r"\s*\[(?:env var|default|required|[\d.x<>=-]+).*?\]$", "", told).strip()
        if "--help" in head or not told:
            continue
        yield head, _sentence(told) + (f" The default is {default[1].strip()}." if default else "")


def pages(text: str) -> Iterator[Row]:
    """Sentences and rows of tables, with the headings that they stand under."""
    headings = [""]
    text = re.sub(
        r"^ {4}.*$", "", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE
    )
    for block in re.split(r"\n\s*\n", text):
        heading = re.match(r"#+ (.+)", block)
        if heading:
            headings = [*headings[:1], heading[1]]
            continue
        if block.startswith("|"):
            yield from _table(headings[-1], block)
            continue
        for sentence in re.split(
            r"(?<=[.!?])\s+(?=[A-Z`])|\n- ", " ".join(block.split("\n")) if "\n- " not in block else block
        ):
            plain = _plain(sentence.removeprefix("- "))
            fits = LENGTHS[0] <= len(plain) <= LENGTHS[1] and plain[0].isupper() and plain.endswith(".")
            if fits and not _REFERS.match(plain):
                yield 0.7, "", f"{headings[-1]} {plain}", plain


def _table(heading: str, block: str) -> Iterator[Row]:
    lines = block.splitlines()
    for line in lines[2:]:
        cells = [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if (
            len(cells) < 2
            or not cells[0]
            or not cells[1]
            or re.match(r"[\d,.]+$", cells[0] + cells[1])
            or re.match(r"[\d.]+$", cells[1])
            or _REFERS.match(_sentence(cells[0]))
        ):
            continue
        told = _sentence(": ".join(cell for cell in cells if cell))
        if LENGTHS[0] <= len(told) <= LENGTHS[1]:
            yield 0.8, cells[0], f"{heading} {told}", told


def _plain(text: str) -> str:
    """Without what only a page shows: links, bold, breaks."""
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text).replace("**", "").replace("\\|", "|")
    return " ".join(text.split())


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def rows() -> Iterator[Row]:
    """All passages, each text once."""

    def read(name: str) -> str:
        return (ROOT / name).read_text(encoding="utf-8")

    seen: set[str] = set()
    every = [*questions(read("docs/questions.md")), *commands(read("docs/cli.md"))]
    for page in PAGES:
        every += pages(read(page))
    for row in every:
        if row[3] not in seen:
            seen.add(row[3])
            yield row


def index() -> str:
    """The text of the index."""
    counts = [line.split() for line in EVERYDAY.read_text(encoding="utf-8").splitlines()[1:]]
    lines = [" ".join(f"{word}:{count}" for word, count in counts)]
    alike = synonyms()
    for weight, title, more, text in rows():
        stems = set(words(title))
        # What people call the things of a title; other passages have words enough.
        other = {word for known in stems for word in alike.get(known, ())} if weight == 1.0 else set[str]()
        sets = (" ".join(sorted(one)) for one in (stems, set(words(more)), other))
        lines.append("\t".join((f"{weight:g}", *sets, text)))
    return "".join(line + "\n" for line in lines)


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
