"""Merges two kernels into one shader: the first workgroups run the first kernel, the others the second.

A declaration that both have in common occurs once in the merged text; other declarations of the second are renamed.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .shader import COMMENT, ENABLE, PRELUDE, Linked, Origin

BRACKET = re.compile(r"[][(){};]")
WORD = re.compile(r"(?<![\w.@])[A-Za-z_]\w*\b")  # not a member of a value, and no attribute
IN_STRUCT = re.compile(WORD.pattern + r"(?!\s*:)")  # not the name of a member
NAME = re.compile(r"\b(?:fn|const|alias|struct|var)\b(?:\s*<[^>]*>)?\s*(\w+)")
NUMBER = re.compile(r"@binding\((\d+)\)")
ENTRY = re.compile(r"@compute\s*@workgroup_size\((\w+)\)")
BUILTIN = re.compile(r"@builtin\((\w+)\)\s*(\w+)\s*:\s*(\w+)")


@dataclass(frozen=True)
class MergedShader:
    """A shader of two kernels."""

    linked: Linked
    numbers: Mapping[int, int]  # new binding numbers of the second kernel, by old number
    memory: bool  # whether the second has workgroup memory that the first does not have


@dataclass(frozen=True)
class Declaration:
    """One declaration at the top level of a module."""

    name: str  # empty for a const_assert and for white space
    text: str

    @property
    def _words(self) -> re.Pattern[str]:
        """Its words that may be names of declarations."""
        return IN_STRUCT if re.search(r"\bstruct\b", self.text) else WORD

    @functools.cached_property
    def names(self) -> set[str]:
        """All words that may be names of declarations."""
        return set(self._words.findall(self.text))

    def renamed(self, names: Mapping[str, str]) -> str:
        """Its text with replaced names."""
        return self._words.sub(lambda found: names.get(found[0], found[0]), self.text)


def lanes(linked: Linked) -> str:
    """The workgroup size that the shader declares."""
    size = ENTRY.search(linked.source)
    assert size, f"{linked.name} has no entry"
    found = re.search(rf"^const {size[1]} = (\d+)u;", linked.source, re.MULTILINE)
    return found[1] if found else size[1]


@functools.lru_cache(maxsize=64)
def merge(first: Linked, second: Linked, groups: tuple[int, int], same: tuple[tuple[int, int], ...]) -> MergedShader:
    """Merges kernels of `groups` workgroups. `same` maps bindings of the second to equal ones of the first."""
    one, other = _declarations(first.source), _declarations(second.source)
    alike = _alike(one, other, dict(same))
    taken = {end for own in (*one, *other) for end in re.findall(r"_\d+\b", own.text)}
    ours, theirs = itertools.islice((end for n in itertools.count(1) if (end := f"_{n}") not in taken), 2)
    numbers = _numbers(first, second, alike)
    names = {own.name: own.name + theirs for own in other if own.name and own.name not in alike}
    texts = (
        "".join(each.renamed({"main": f"main{ours}"}) for each in one),
        "".join("\n" * own.text.count("\n") if own.name in alike else own.renamed(names) for own in other),
    )
    texts = texts[0], NUMBER.sub(lambda found: f"@binding({numbers[int(found[1])]})", texts[1])
    enabled = "".join(sorted({line for linked in (first, second) for line in ENABLE.findall(linked.source)}))
    entry = _entry((first, second), groups, (f"main{ours}", f"main{ours if 'main' in alike else theirs}"))
    whole = "".join((enabled, *texts, entry))
    origins = Origin.generated(PRELUDE, enabled), *first.origins, *second.origins, Origin.generated("entry", entry)
    memory = any(own.name not in alike and re.search(r"\bworkgroup\b", own.text) for own in other)
    return MergedShader(Linked(f"{first.name} & {second.name}", whole, origins), numbers, memory)


def _declarations(source: str) -> tuple[Declaration, ...]:
    """The declarations of a shader without comments; the entry point becomes an ordinary function."""
    plain = BUILTIN.sub(r"\2: \3", ENTRY.sub("", ENABLE.sub("\n", COMMENT.sub("", source))))
    found: list[Declaration] = []
    start = depth = 0
    for token in BRACKET.finditer(plain):
        depth += (token[0] in "({[") - (token[0] in ")}]")
        if depth == 0 and token[0] in ";}":
            text = plain[start : token.end()]
            own = text.lstrip()
            name = NAME.search(own)
            found += Declaration("", text[: -len(own)]), Declaration(name[1] if name else "", own)
            start = token.end()
    return *found, Declaration("", plain[start:])


def _alike(one: Sequence[Declaration], other: Sequence[Declaration], same: Mapping[int, int]) -> set[str]:
    """Names with the same meaning in both: their declarations, and all that these use, are equal."""
    ours, theirs = ({own.name: own for own in each if own.name} for each in (one, other))

    def equal(name: str) -> bool:
        texts = [each[name].text for each in (ours, theirs)]
        here, there = (NUMBER.search(text) for text in texts)
        bound = not there or (bool(here) and same.get(int(there[1])) == int(here[1] if here else 0))
        return bound and NUMBER.sub("", texts[0]) == NUMBER.sub("", texts[1])

    alike = {name for name in theirs if name in ours and equal(name)}
    while True:
        apart = {name for name in alike if theirs[name].names & (theirs.keys() - alike)}
        if not apart:
            return alike
        alike -= apart


def _numbers(first: Linked, second: Linked, alike: set[str]) -> dict[int, int]:
    """The binding numbers of the second kernel: those of the first for equal bindings, else free ones."""
    ours = {binding.name: number for number, binding in first.bindings().items()}
    free = itertools.count(max(ours.values()) + 1)
    theirs = second.bindings().items()
    return {n: ours[binding.name] if binding.name in alike else next(free) for n, binding in theirs}


def _entry(kernels: tuple[Linked, Linked], groups: tuple[int, int], mains: tuple[str, str]) -> str:
    asked = [BUILTIN.findall(COMMENT.sub("", linked.source)) for linked in kernels]
    kinds = {"workgroup_id": "vec3u", "num_workgroups": "vec3u"} | {b: kind for each in asked for b, _, kind in each}
    arguments = ", ".join(f"@builtin({builtin}) {builtin}: {kind}" for builtin, kind in kinds.items())
    calls = []
    for each, count, main, begin in zip(asked, groups, mains, ("", f" - {groups[0]}u"), strict=True):
        own = {"workgroup_id": f"vec3u(group{begin}, 0u, 0u)", "num_workgroups": f"vec3u({count}u, 1u, 1u)"}
        calls.append(f"{main}({', '.join(own.get(builtin, builtin) for builtin, _, _ in each)});")
    return f"""@compute @workgroup_size({lanes(kernels[0])})
fn main({arguments}) {{
    let group = workgroup_id.x + workgroup_id.y * num_workgroups.x;
    if group < {groups[0]}u {{
        {calls[0]}
    }} else {{
        {calls[1]}
    }}
}}
"""
