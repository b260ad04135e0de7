"""Asks a built-in model questions in chats, greedily, prints the answers, and says how many are right.

    python -m training.evaluate rwkv_gpu/builtin/builtin.gguf [--device cpu] [--wrong]

questions.txt is small talk and knowledge; tests/help_questions.txt is what users ask about the program, and what the
model must decline. tests/help_unseen.txt and tests/help_fresh.txt are questions of this kind that measured the search,
before it was changed and after.
"""

import argparse
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import rwkv_gpu

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
TALK, HELP = HERE / "questions.txt", TESTS / "help_questions.txt"
MEASURED = tuple(TESTS / f"help_{name}.txt" for name in ("unseen", "fresh", "heldout"))


@dataclass(frozen=True)
class Asked:
    """A question, and the expressions that a right answer holds and does not hold."""

    question: str
    right: str
    wrong: str = ""
    section: str = "talk"

    def good(self, answer: str) -> bool:
        """Whether an answer is right."""
        return re.search(self.right, answer) is not None and not (self.wrong and re.search(self.wrong, answer))


def talks() -> Iterator[list[Asked]]:
    """The conversations of questions.txt: lines without an empty one between them."""
    for part in TALK.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in part.splitlines() if line and not line.startswith("#")]
        if lines:
            yield [Asked(asked.strip(), right.strip()) for asked, right in (line.split(" => ") for line in lines)]


def helped(path: Path = HELP) -> list[list[Asked]]:
    """The conversations of help_questions.txt: a line, and those after it that begin with a plus."""
    found: list[list[Asked]] = []
    section = never = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section, never = line[3:], ""
        elif line.startswith("never: "):
            never = line[7:]
        elif " => " in line and not line.startswith("#"):
            question, _, rest = line.partition(" => ")
            right, _, wrong = rest.partition(" =/= ")
            wrongs = "|".join(f"(?:{part})" for part in (wrong.strip(), never) if part)
            one = Asked(question.removeprefix("+ "), f"(?i){right.strip()}", f"(?i){wrongs}" if wrongs else "", section)
            if question.startswith("+ "):
                found[-1].append(one)
            else:
                found.append([one])
    return found


def hold(llm: rwkv_gpu.LLM, talk: list[Asked], **settings: float) -> Iterator[tuple[Asked, str, bool]]:
    """The questions of a conversation, their answers, and whether each is right."""
    chat = llm.chat(**{"temperature": 0, "max_tokens": 250, **settings})
    for asked in talk:
        answer = chat.send(asked.question).text.strip()
        yield asked, answer, asked.good(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--wrong", action="store_true", help="print wrong answers only")
    args = parser.parse_args()
    right, total = Counter[str](), Counter[str]()
    start = time.perf_counter()
    with rwkv_gpu.load(args.model, device=args.device) as llm:
        for talk in [*talks(), *helped(), *(talk for path in MEASURED for talk in helped(path))]:
            for asked, answer, good in hold(llm, talk, temperature=args.temperature, seed=1):
                right[asked.section] += good
                total[asked.section] += 1
                if not (good and args.wrong):
                    print(f"User: {asked.question}\n{'  ' if good else '✗ '}{answer}")
    for section in total:
        print(f"{section}: {right[section]} of {total[section]} right")
    print(f"in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
