"""Takes common nouns and what they mean, and names of rarer ones, out of WordNet (Debian's package wordnet-base).

    python -m training.wordnet /usr/share/wordnet

The common ones the model learns, of the rarer ones it learns to say that it does not know them. WordNet's licence allows
this and stands beside the files that are written: training/talk/nouns.tsv and training/talk/rare.lst.
"""

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .sheet import TALK, lists, sheets

COMMON, RARE = 2600, 9000
LONGEST = 84  # letters of a meaning
# WordNet's files of nouns that are things or beings to point at; their names take an article.
COUNTED = {"05", "06", "15", "17", "18", "20", "08", "14"}
OTHERS = {"04", "07", "09", "10", "11", "13", "19", "21", "23", "24", "25", "26", "27", "28"}
_UNFIT = re.compile(
    r"sex|slang|offensive|obscen|disparag|derog|genital|vulg|prostit|negro|racial|breast|anus|excre|urin|feces|semen|erotic|nud"
    r"|murder|suicid|rape|nazi|slave|ethnic|jew|muslim|christ|drug|narcotic|penis|vagin|copulat|homosex|lesbian|insult|contempt"
    r"|intercourse|fuck|shit|bastard|whore|terror",
    re.I,
)  # fmt: skip


@dataclass(frozen=True)
class Noun:
    """A noun in its first sense: how often it was met in texts, and what it means."""

    word: str
    count: int
    file: str
    meaning: str


def nouns(folder: Path) -> Iterator[Noun]:
    """All nouns of one small word."""
    counts: dict[str, int] = {}
    for line in (folder / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        key, sense, count = line.split(" ")
        word, _, rest = key.partition("%")
        if rest.startswith("1:") and sense == "1":
            counts[word] = int(count)
    senses = {line[:8]: line for line in (folder / "data.noun").read_text(encoding="latin-1").splitlines()}
    for line in (folder / "index.noun").read_text(encoding="latin-1").splitlines():
        word, *fields = line.split()
        if not re.fullmatch("[a-z]{3,12}", word) or line.startswith(" "):
            continue
        sense = senses[fields[-int(fields[1])]]
        meaning = re.sub(r"\([^)]*\) ?", "", sense.partition("| ")[2]).partition(";")[0].strip()
        named = sense.split()[4]
        if named.islower() and not _UNFIT.search(meaning) and not _UNFIT.search(word):
            yield Noun(word, counts.get(word, 0), sense.split()[1], meaning)


def fit(noun: Noun) -> bool:
    """Whether the meaning is short, plain and about something simple."""
    plain = 12 <= len(noun.meaning) <= LONGEST and re.fullmatch(r"[A-Za-z ,'-]+", noun.meaning) is not None
    return plain and noun.file in COUNTED | OTHERS and noun.word not in noun.meaning.split()


def told() -> set[str]:
    """Words that the sheets explain already."""
    rows = [row for sheet in sheets() for block in sheet.blocks for row in block.rows]
    return {value for row in rows for value in row.values()} | {
        value for values in lists().values() for value in values
    }


def main() -> None:
    known, taken = told(), []
    every = sorted(nouns(Path(sys.argv[1])), key=lambda noun: (-noun.count, noun.word))
    for noun in every:
        if fit(noun) and noun.word not in known and len(taken) < COMMON:
            taken.append(noun)
    used = {noun.word for noun in every if noun.count > 1} | known
    rare = random.Random(0).sample([noun.word for noun in every if noun.word not in used and noun.count == 0], RARE)
    lines = (
        f"{noun.word}\t{'counted' if noun.file in COUNTED else ''}\t{noun.meaning}\n"
        for noun in sorted(taken, key=lambda noun: noun.word)
    )
    (TALK / "nouns.tsv").write_text("".join(lines), encoding="ascii")
    (TALK / "rare.lst").write_text("".join(f"{word}\n" for word in sorted(rare)), encoding="ascii")


if __name__ == "__main__":
    main()
