"""Holds a built-in model against questions.txt, greedily, and prints the talks: right answers, and their share.

python -m training.evaluate rwkv_gpu/builtin/builtin.gguf [--device cpu]
"""

import argparse
import re
import time
from collections.abc import Iterator
from pathlib import Path

import rwkv_gpu

QUESTIONS = Path(__file__).parent / "questions.txt"
Asked = tuple[str, str]  # what is said, and the expression that a right answer holds


def talks() -> Iterator[list[Asked]]:
    """The conversations of questions.txt."""
    for part in QUESTIONS.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in part.splitlines() if line and not line.startswith("#")]
        if lines:
            yield [(asked.strip(), right.strip()) for asked, right in (line.split(" => ") for line in lines)]


def answer(llm: rwkv_gpu.LLM, prompt: str, **settings: float) -> str:
    """What the model says, to the end of its turn."""
    said = llm.generate(prompt, max_tokens=250, stop=("\n\n",), **settings)
    return said.text.strip()


def hold(llm: rwkv_gpu.LLM, talk: list[Asked], **settings: float) -> Iterator[tuple[str, str, bool]]:
    """The questions of a conversation, their answers, and whether each is right."""
    prompt = ""
    for asked, right in talk:
        prompt += f"User: {asked}\n\nAssistant:"
        said = answer(llm, prompt, **settings)
        prompt += f" {said}\n\n"
        yield asked, said, re.search(right, said) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    right = total = 0
    start = time.perf_counter()
    with rwkv_gpu.load(args.model, device=args.device) as llm:
        for talk in talks():
            for asked, said, good in hold(llm, talk, temperature=args.temperature, seed=1):
                right, total = right + good, total + 1
                print(f"User: {asked}\n{'  ' if good else '✗ '}{said}")
            print()
    print(f"{right} of {total} right, in {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
