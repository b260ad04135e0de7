"""The chat templates that come with llama.cpp, and the prompts that transformers renders with them.

`python -m tests.text.template_matrix FOLDER` records them again, where FOLDER is models/templates of llama.cpp.
It needs transformers. The templates are copied from llama.cpp, whose licence (MIT) is part of the recording.
"""

import ast
import json
import lzma
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "template_matrix.json.xz"
NOW = datetime(2026, 11, 28, 12, 30)
DATES = {"date_string": "28 Nov 2026", "datetime": "Nov 28 2026"}
BOS, EOS = "<s>", "</s>"

Message = dict[str, Any]
SYSTEM = {"role": "system", "content": "Be brief."}
QUESTION = {"role": "user", "content": "Weather in Köln?"}
ANSWER = {"role": "assistant", "content": "Rain, at 4 °C."}
BEGUN = {"role": "assistant", "content": "Rain, at"}
PARTS = [{"type": "text", "text": "Weather in"}, {"type": "text", "text": "Köln?"}]
AGAIN = {"role": "user", "content": "And <b>tomorrow</b>?"}
THOUGHT = "Look it up."
ARGUMENTS = {"city": "Köln", "days": 2}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Reads {name}.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of a city"},
                    "days": {"type": "integer", "description": "Number of days"},
                },
                "required": ["city"],
            },
        },
    }
    for name in ("weather", "events")
]


def _call(name: str, call_id: str, *, text: bool) -> Message:
    arguments = json.dumps(ARGUMENTS, ensure_ascii=False) if text else ARGUMENTS
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _loop(content: str | None, *, text: bool, parallel: bool = False, reasoning: bool = False) -> list[Message]:
    """A question, a call or two, and their results."""
    called = ["weather", "events"] if parallel else ["weather"]
    calls = [_call(name, f"abcdefgh{n}", text=text) for n, name in enumerate(called)]
    asking: Message = {"role": "assistant", "content": content, "tool_calls": calls}
    if reasoning:
        asking["reasoning_content"] = THOUGHT
    results = [
        {"role": "tool", "tool_call_id": f"abcdefgh{n}", "name": name, "content": f'{{"{name}": {n}}}'}
        for n, name in enumerate(called)
    ]
    return [QUESTION, asking, *results]


def cases() -> Iterator[tuple[str, list[Message], list[Message] | None, bool]]:
    """Yields name, messages, tools, and whether the prompt opens an answer."""
    yield "plain", [QUESTION, ANSWER, AGAIN], None, True
    yield "system", [SYSTEM, QUESTION], None, True
    yield "tools", [SYSTEM, QUESTION], TOOLS, True
    yield "reasoning", [QUESTION, {**ANSWER, "reasoning_content": THOUGHT}, AGAIN], None, True
    yield "trailing", [QUESTION, ANSWER], None, False
    yield "continued", [QUESTION, BEGUN], None, False
    yield "parts", [{"role": "user", "content": PARTS}], None, True
    for form in ("text", "objects"):
        for content in ("", "I look."):
            said = "said" if content else "silent"
            yield f"{said}, {form}", _loop(content, text=form == "text"), TOOLS, True
        yield f"reasoning, {form}", _loop("", text=form == "text", reasoning=True), TOOLS, True
        yield f"parallel, {form}", _loop("", text=form == "text", parallel=True), TOOLS, True


def load() -> tuple[dict[str, str], dict[str, dict[str, str | None]]]:
    """Returns the templates by name; for each, the prompt of every case, or None if transformers fails."""
    recorded = json.loads(lzma.decompress(PATH.read_bytes()))
    return recorded["templates"], recorded["prompts"]


def load_older() -> dict[str, tuple[str, str]]:
    """Returns templates of models of 2023 to 2025, which show no calls, with the prompt of the first case."""
    return json.loads(lzma.decompress(PATH.read_bytes()))["older"]  # type: ignore[no-any-return]


def sources() -> dict[str, str]:
    """Returns all templates by name."""
    return {name: source for name, (source, _) in load_older().items()} | load()[0]


def _rendered(
    oracle: Any, source: str, case: str, messages: list[Message], tools: list[Message] | None, opened: bool
) -> str | None:
    """Renders the prompt with transformers; None if the template fails."""
    listed = json.dumps([tool["function"] for tool in tools or ()], ensure_ascii=False, indent=4)
    extra = {"functions": listed} if "+ functions" in source else {}
    try:
        [prompt], _ = oracle.render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=opened,
            continue_final_message=case == "continued", bos_token=BOS, eos_token=EOS, **DATES, **extra,
        )  # fmt: skip
    except Exception:  # noqa: BLE001  whatever a template raises
        return None
    return str(prompt)


def older(tests: str) -> Iterator[tuple[str, str]]:
    """Yields name and source of the templates in a test of llama.cpp: those of models of 2023 to 2025."""
    text = r'(?:U8C\()?((?:\s*"(?:[^"\\]|\\.)*")+)'
    for name, source in re.findall(rf'\.name= \*/ "([\w./ -]+)",\s*/\* \.template_str=? \*/ {text}', tests):
        yield name.replace("/", "-"), ast.literal_eval(f"({source})")


def record(folder: Path) -> None:
    """Renders all cases with transformers, and writes the recording."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment
    from transformers.utils import chat_template_utils as oracle  # type: ignore[import-not-found]  # recording only

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]  # noqa: ARG003
            return NOW

    oracle.datetime = Then
    templates = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}
    prompts: dict[str, dict[str, str | None]] = {}
    for name, source in templates.items():
        # Kimi-K2 appends to lists, which transformers refuses and llama.cpp allows.
        mutable = "append(" in source
        oracle.ImmutableSandboxedEnvironment = SandboxedEnvironment if mutable else ImmutableSandboxedEnvironment
        prompts[name] = {case: _rendered(oracle, source, case, *rest) for case, *rest in cases()}
    tests = (folder.parents[1] / "tests/test-chat-template.cpp").read_text("utf-8")
    case, *rest = next(cases())
    others = {name: (source, _rendered(oracle, source, case, *rest)) for name, source in older(tests)}
    others = {name: one for name, one in others.items() if one[1]}  # one needs a list of special tokens
    licence = (folder.parents[1] / "LICENSE").read_text("utf-8")
    data = json.dumps(
        {"licence": licence, "templates": templates, "prompts": prompts, "older": others}, ensure_ascii=False
    )
    PATH.write_bytes(lzma.compress(data.encode(), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
