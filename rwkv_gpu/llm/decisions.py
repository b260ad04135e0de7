"""Questions about a state for a decision model, as a text, and their answers from the scores of all options.

The text, its parts and the answers are those of Clef's publisher. A request has the form of the System One API.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..ops.truncation import softmax
from ..text.base import Tokenizer

Floats = npt.NDArray[np.float32]
KINDS = "noul", "choice", "score"  # of questions, by their number in the file; noul is a proposition, true or false
MAX_QUESTIONS, MAX_OPTIONS = 256, 4096
TRUE, FALSE = "The proposition is true or the answer is yes.", "The proposition is false or the answer is no."
BEGIN = (
    "<|im_start|>system\nRead the complete state and schema. Decide every field jointly. Each answer must be exactly "
    "one of that field's allowed options.<|im_end|>\n<|im_start|>user\nSTATE:\n"
)
END = "\n<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nJOINT SCHEMA DECISIONS:"


@dataclass(frozen=True)
class Question:
    """A question, with its options in the order of the text, as (name, description or None)."""

    name: str
    kind: str
    instructions: str
    options: tuple[tuple[str, Any], ...]
    order: tuple[str, ...] = ()  # names of the options, in the order of the request
    legend: Mapping[str, Any] | None = None  # levels of a score

    @classmethod
    def of(cls, name: str, given: Any) -> "Question":
        """Checks a question."""
        at = f"questions[{name!r}]"
        if not isinstance(given, dict) or given.get("type") not in KINDS:
            raise BadInput(f"{at} must be an object whose type is {', '.join(KINDS[:-1])} or {KINDS[-1]}")
        unknown = given.keys() - {"type", "instructions", "criteria"}
        if unknown:
            raise BadInput(f"{at} has the unknown field {min(unknown)!r}; use type, instructions and criteria")
        kind, criteria, legend = given["type"], given.get("criteria"), None
        if kind == "noul":
            criteria = {} if criteria is None else criteria
            if not isinstance(criteria, dict) or criteria.keys() - {"true", "false"}:
                raise BadInput(f"{at}: criteria of a noul question are an object with true and false")
            options = [("true", criteria.get("true", TRUE)), ("false", criteria.get("false", FALSE))]
        elif kind == "choice":
            if not isinstance(criteria, dict) or len(criteria) < 2:
                raise BadInput(f"{at}: criteria of a choice are an object with at least two options")
            options = [*criteria.items()]
        else:
            if not isinstance(criteria, list) or len(criteria) < 2:
                raise BadInput(f"{at}: criteria of a score are a list of at least two levels")
            options = [(str(level), one) for level, one in enumerate(criteria)]
            legend = dict(options)
        if len(options) > MAX_OPTIONS:
            raise BadInput(f"{at} has {len(options):,} options; at most {MAX_OPTIONS:,} are allowed")
        order = tuple(option for option, _ in options)
        in_text = tuple(sorted(options) if kind == "choice" else options)
        return cls(name, kind, rendered(given.get("instructions") or name), in_text, order, legend)

    def answer(self, probabilities: npt.NDArray[np.float64]) -> dict[str, Any]:
        """The answer, of the options in the order of the text."""
        by_name = {name: round(float(p), 4) for (name, _), p in zip(self.options, probabilities, strict=True)}
        if self.kind == "noul":
            return {"type": "noul", "noul": by_name["true"]}
        found = {"probabilities": {name: by_name[name] for name in self.order}, "confidence": max(by_name.values())}
        if self.kind == "choice":
            return {"type": "choice", "choice": self.options[int(np.argmax(probabilities))][0], **found}
        mean = round(float(probabilities @ np.arange(len(probabilities))), 4)
        return {"type": "score", "score": mean, "legend": self.legend, **found}


@dataclass(frozen=True)
class Asked:
    """A tokenised text, and the ranges of tokens of its questions and options."""

    ids: list[int]
    questions: list[Question]
    spans: list[range]  # of the instructions of each question
    options: list[tuple[int, range]]  # number of the question and tokens of each option

    @classmethod
    def of(cls, tokenizer: Tokenizer, state: Any, questions: Any) -> "Asked":
        """Tokenises a state and questions part by part, as in training."""
        if not isinstance(questions, dict) or not 0 < len(questions) <= MAX_QUESTIONS:
            raise BadInput(f"questions must be an object with 1 to {MAX_QUESTIONS} questions by name")
        if state is None:
            raise BadInput("state is missing; give a text, or any JSON")
        asked = cls([], [Question.of(name, given) for name, given in questions.items()], [], [])

        def add(text: str, *, parse: bool = False) -> range:
            start = len(asked.ids)
            asked.ids.extend(tokenizer.encode(text, parse=parse))
            return range(start, len(asked.ids))

        add(BEGIN, parse=True)
        add(rendered(state))
        add("\n\nSCHEMA FIELDS:\n")
        for number, one in enumerate(asked.questions):
            add(f"\nFIELD {number}\nID: {one.name}\nTYPE: {one.kind}\nINSTRUCTION: ")
            asked.spans.append(add(one.instructions))
            add("\nALLOWED OPTIONS:\n")
            for at, (name, description) in enumerate(one.options):
                add(f"OPTION {at}: ")
                described = {} if description is None else {"description": description}
                asked.options.append((number, add(rendered({"option_id": name, **described}))))
                add("\n")
            add("END FIELD\n")
        add(END, parse=True)
        if not all(asked.spans) or not all(span for _, span in asked.options):
            raise BadInput("a question or an option has no tokens; give it a text")
        return asked

    def answers(self, scores: Floats) -> dict[str, Any]:
        """The answer of each question, from the scores of all options."""
        owners = np.array([number for number, _ in self.options])
        each = (scores[owners == number].astype(np.float64) for number in range(len(self.questions)))
        return {one.name: one.answer(softmax(own)) for one, own in zip(self.questions, each, strict=True)}


def rendered(value: Any) -> str:
    """A text as it is; other values as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"a value of the request is no JSON: {error}") from None
