"""Makes the index of the documentation that the built-in model quotes.

    python -m training.help_index

A passage is a weight, the questions that it answers, other words for it, and the text that is quoted. docs/cli.md holds
`--help`. Lines of everyday words, synonyms and small talk stand before the passages, families of models after them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rwkv_gpu.builtin.index import ARCHITECTURES, INDEX
from rwkv_gpu.builtin.pages import SENTENCES
from rwkv_gpu.builtin.words import words

from . import apart

ROOT = Path(__file__).resolve().parent.parent
SYNONYMS = Path(__file__).with_name("synonyms.txt")
FORMS = Path(__file__).with_name("help_forms.txt")
PHRASINGS = Path(__file__).with_name("help_phrasings.txt")
WORDINGS = Path(__file__).with_name("help_wordings.txt")
VOICES = Path(__file__).with_name("help_voices.txt")
SMALL_TALK = Path(__file__).with_name("small_talk.txt")
MODELS = Path(__file__).with_name("help_models.txt")
EVERYDAY = Path(__file__).with_name("everyday.txt")
PAGES = ("docs/chat.md", "docs/devices.md", "docs/troubleshooting.md", "docs/models.md", "docs/server.md")
MORE_PAGES = (  # where a sentence is looked for that nothing else has
    *("README.md", "docs/library.md", "docs/sampling.md", "docs/scale.md", "docs/cluster.md", "docs/tuning.md"),
    *("docs/matrix-units.md", "docs/chunk-size.md", "docs/comparison.md"),
)
_REFERS = re.compile(
    r"(It|They|So|Those|These|This|That|What|One|Where|Each|Every one|All|Both|There|On the host|Without|Part)\b"
)  # to what stands before
_QUOTABLE = re.compile(
    r"^(?!.*\b(?:took|measured|tok/s|\d (?:ms|s)\b)).*[a-z]{3}.*[.!]$"
)  # no figures of a measurement
LENGTHS = (30, 260)  # characters of a passage
LONGEST = 400  # of two sentences of a page
SUPPORTED = "Which models are supported?"  # the entry that names the architectures
Row = tuple[float, list[str], str, str]  # weight, questions, other words, text


def synonyms() -> str:
    """Groups of words that people use for each other, by their stems."""
    lines = SYNONYMS.read_text(encoding="utf-8").splitlines()
    groups = (sorted(set(words(line.replace('"', "")))) for line in lines if not line.startswith("#"))
    return "\t".join(" ".join(group) for group in groups)


def forms() -> dict[str, list[str]]:
    """How people ask for each entry of docs/questions.md. Questions that the search is judged by are left out."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in (FORMS, PHRASINGS, WORDINGS, VOICES):
        for block in re.split(r"^= ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            title, *lines = block.strip().splitlines()
            lines = [line for line in lines if not line.startswith("+ ")]
            asked = (form for line in lines for form in variants(line.removeprefix("? ")))
            found[title] += (question for question in asked if not apart.near(question))
    return found


def vocabulary() -> dict[str, str]:
    """Other words for the topics of the entries of docs/questions.md."""
    return dict(re.findall(r"^= (.+)\n\+ (.+)$", PHRASINGS.read_text(encoding="utf-8"), re.MULTILINE))


def variants(form: str) -> list[str]:
    """A template of a question with each of its alternatives, in as few questions as have them all."""
    parts = [
        part.strip("{}[]").split("|") if part[:1] in "{[" else [part] for part in re.split(r"(\{.*?\}|\[.*?\])", form)
    ]
    most = max(len(part) for part in parts)
    return [" ".join("".join(part[n % len(part)] for part in parts).split()) for n in range(most)]


def questions(text: str) -> Iterator[Row]:
    """The entries of docs/questions.md: a heading, other words in a comment, an answer."""
    asked, vocabularies = forms(), vocabulary()
    for title, more, answer in re.findall(r"^### (.+)\n(?:<!-- also: (.*) -->\n)?(.+)$", text, re.MULTILINE):
        named = re.findall(r"(?<![\w./-])(?:--[a-z][\w-]*|/[a-z]+)", answer[:30])
        others = re.findall(r"/[a-z]+", " ".join(re.findall(r"\(or (/[^)]*)\)", answer)))  # Type /exit (or /quit)
        text = f"{answer} {ARCHITECTURES}." if title == SUPPORTED else answer
        yield 1.0, [title, *named[:1], *others, *asked[title]], f"{more} {vocabularies.get(title, '')}", text


def commands(text: str) -> Iterator[Row]:
    """What `--help` says: every command, and every option with the commands that have it."""
    options: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, page in re.findall(r"^## rwkv-gpu (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL):
        usage, _, rest = page.partition("Options:")
        says = _sentence(" ".join(line.strip() for line in usage.strip().split("\n\n")[1].splitlines()))
        example = re.search(r"Example: (.+)", page)
        shown = f" Example: `{example[1].strip()}`." if example else ""
        yield (
            0.95,
            [f"what does rwkv-gpu {name} do", f"the {name} command", says],
            "",
            f"`rwkv-gpu {name}`: {says}{shown}",
        )
        for flags, told, default in _options(rest):
            options[flags, told][default].append(name)
    for (flags, told), defaults in options.items():
        shown = ", ".join(f"`{flag}`" for flag in re.findall(r"-[\w-]+", flags))
        names = [name for each in defaults.values() for name in each]
        where = f" of `rwkv-gpu {names[0]}`" if len(set(names) - {"run"}) == 1 else ""
        yield (
            0.8,
            [*re.findall(r"(?<!\S)-[\w-]+", flags.replace("/", " "))],
            f"{told} {' '.join(names)}",
            f"{shown}{where}: {told}{_default(defaults)}",
        )


def _default(defaults: dict[str, list[str]]) -> str:
    """What an option is without being given, where `--help` says it; by commands where they differ."""
    if len(defaults) == 1:
        (default,) = defaults
        return f" The default is `{default}`." if default else ""
    each = (f"`{default}` with {_listed(names)}" for default, names in defaults.items() if default)
    return f" The default is {'; '.join(each)}."


def _listed(names: list[str]) -> str:
    shown = [f"`{name}`" for name in names]
    return " and ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part)


def _options(text: str) -> Iterator[tuple[str, str, str]]:
    """The flags of each option, what it does within which bounds, and its default."""
    for block in re.split(r"\n(?= {6}-| {4}\w)", text.split("Example:")[0]):
        lines = [line for line in block.splitlines() if line.strip()]
        if not lines or not lines[0].startswith("      -"):
            continue
        head, _, told = lines[0].strip().partition("  ")
        told = " ".join([told.strip(), *(line.strip() for line in lines[1:])])
        default = re.search(r"default: ([^;\]]+)", told)
        least, most = re.search(r"([\d.]+)<=x|x>=([\d.]+)", told), re.search(r"x<=([\d.]+)", told)
        told = re.sub(r"\s*\[(?:env var|default|required|[\d.x<>=-]+).*?\]$", "", told).strip()
        if "--help" in head or not told:
            continue
        bounds = f" At least {least[1] or least[2]}, at most {most[1]}." if least and most else ""
        choices, unit = re.search(r" \[(\w+\|[\w|]+)\]$", head), re.search(r" (SECONDS|BYTES)$", head)
        bounds += f" One of {choices[1].replace('|', ', ')}." if choices else ""
        bounds += f" In {unit[1].lower()}." if unit else ""
        takes = re.search(r" ([A-Z]+)\|([A-Z]+)$", head)
        bounds += f" Takes {takes[1]} or {takes[2]}." if takes else ""
        yield head, _sentence(told) + bounds, default[1].strip(" ()") if default else ""


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
                yield 0.7, [], f"{headings[-1]} {plain}", plain


def _table(heading: str, block: str) -> Iterator[Row]:
    lines = block.splitlines()
    heads = _cells(lines[0])
    for line in lines[2:]:
        cells = _cells(line)
        if (
            len(cells) < 2
            or not cells[0]
            or not cells[1]
            or re.match(r"[\d,.]+$", cells[0] + cells[1])
            or re.match(r"[\d.]+$", cells[1])
            or _REFERS.match(_sentence(cells[0]))
        ):
            continue
        if len(cells) > 3:  # too many to be understood without what they are called
            parts = (f"{head} {cell}".strip() for head, cell in zip(heads[1:], cells[1:], strict=False) if cell)
            told = _sentence(f"{cells[0]}: {'; '.join(parts)}")
        else:
            told = _sentence(": ".join(cell for cell in cells if cell))
        if LENGTHS[0] <= len(told) <= LENGTHS[1]:
            yield 0.8, [cells[0], *re.findall(r"^`(/[a-z]+)", cells[0])], f"{heading} {told}", told


def _cells(line: str) -> list[str]:
    return [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def other_names(text: str) -> Iterator[Row]:
    """The table of other engines' options: engine, names, what there is here."""
    section = text.partition("\n## Names of options\n")[2]
    for engine, names, told in re.findall(r"^\| ([^|`]+) \| (`.+?) \| (.+) \|$", section, re.MULTILINE):
        listed = re.findall(r"`([^`]+)`", names)
        plain = [name.lower().replace("_", "-") for name in listed]
        asked = [form.format(name) for name in listed for form in ("{} here", f"{engine} {{}}", "equivalent of {}")]
        yield (
            0.9,
            [*plain, *asked],
            f"{engine} option called instead same",
            f"{engine}'s {', '.join(f'`{n}`' for n in listed)}: {told}",
        )


def _named(text: str) -> set[str]:
    """The long options that a text names."""
    return set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text))


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
    every += other_names(read("docs/comparison.md"))
    ours = _named(read("docs/cli.md"))
    for page in PAGES:  # what names options of other programs, such as the benchmarks, is no help with ours
        every += (row for row in pages(read(page)) if _named(row[3]) <= ours)
    for row in every:
        if row[3] not in seen:
            seen.add(row[3])
            yield row


def index() -> str:
    """The text of the index."""
    counts = [line.split() for line in EVERYDAY.read_text(encoding="utf-8").splitlines()[1:]]
    lines = [" ".join(f"{word}:{count}" for word, count in counts), synonyms()]
    lines.append("|".join(SMALL_TALK.read_text(encoding="utf-8").splitlines()))
    for weight, asked, also, text in rows():
        lines.append(
            "\t".join((f"{weight:g}", "|".join(dict.fromkeys(asked)), " ".join(sorted(set(words(also)))), text))
        )
    for line in MODELS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            names, _, needs = line.partition(" =")
            lines.append("\t".join(("model", names, needs.strip())))
    return "".join(line + "\n" for line in lines)


def sentences() -> str:
    """The text of the second index: the sentences of all pages, each with its page and heading."""
    lines: dict[str, str] = {}
    for page in PAGES + MORE_PAGES:
        for heading, text in _stated((ROOT / page).read_text(encoding="utf-8")):
            lines.setdefault(text, f"{page}\t{heading}\t{text}\n")
    cli = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for heading, text in [*_stated(cli.partition("\n## ")[0]), *_told_of_commands(cli)]:
        lines.setdefault(text, f"docs/cli.md\t{heading}\t{text}\n")
    return "".join(lines.values())


def _told_of_commands(text: str) -> Iterator[tuple[str, str]]:
    """What `--help` says of each command, before its options."""
    for name, page in re.findall(r"^## rwkv-gpu (\S+)\n(.*?)(?=^ +Options:)", text, re.MULTILINE | re.DOTALL):
        for paragraph in page.split("\n\n")[1:]:
            for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", _plain(paragraph)):
                if not sentence.startswith("Usage:") and len(sentence) >= LENGTHS[0]:
                    yield f"rwkv-gpu {name}", f"`rwkv-gpu {name}`: {sentence}"


def _stated(page: str) -> Iterator[tuple[str, str]]:
    """Headings and what stands below them: rows of tables, commands with comments, sentences.

    A sentence that refers to the one before it has that one before it.
    """
    heading = ""
    for block in re.split(r"\n\s*\n", re.sub(r"^```\w*$|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)):
        title = re.match(r"#+ (.+)", block)
        if title:
            heading = _plain(title[1])
        elif block.startswith("|"):
            yield from ((heading, text) for _, _, _, text in _table(heading, block))
        elif re.match(r" {4}", block):
            for command, says in re.findall(r"^ {4}(\S.*?) {2,}# (.+)$", block, re.MULTILINE):
                yield heading, f"`{command}`: {_sentence(says)}"
        else:
            before = ""
            for part in re.split(r"\n- ", block.removeprefix("- ")):
                for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", _plain(part)):
                    text = f"{before} {sentence}" if before and _REFERS.match(sentence) else sentence
                    before = sentence
                    alone = text is sentence and _REFERS.match(sentence)
                    if LENGTHS[0] <= len(text) <= LONGEST and _QUOTABLE.search(text) and not alone:
                        yield heading, text


if __name__ == "__main__":
    SENTENCES.write_text(sentences(), encoding="utf-8")
    INDEX.write_text(index(), encoding="utf-8")
