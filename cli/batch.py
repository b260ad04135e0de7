"""`rwkv-gpu batch`: many prompts from a file, answered together, into another file."""

import json
import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import IO, Any

import click

from rwkv_gpu import LLM, Completion
from rwkv_gpu.errors import BadInput, DeviceError, RwkvGpuError
from rwkv_gpu.llm.completion import GREEDY, sampling
from rwkv_gpu.text.messages import check_messages

from .bars import lines_bar
from .load_model import load_model
from .options import FileName, model_argument, opening_options
from .sampling import given, sampling_options
from .screen import Screen
from .texts import read_text

Line = dict[str, Any]
BEGINNING = b'{"id": '  # of every result


@click.command("batch", epilog="Example: rwkv-gpu batch model.gguf questions.jsonl answers.jsonl --sequences 16")
@model_argument
@click.argument("source", metavar="IN.jsonl", type=FileName())
@click.argument("target", metavar="OUT.jsonl", type=FileName())
@click.option(
    "--sequences", type=click.IntRange(1, 256), default=8, show_default=True, help="Lines answered at a time."
)
@click.option("--template", help="A built-in chat template by its name, for lines with messages.")
@sampling_options(GREEDY)
@opening_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    source: str,
    target: str,
    sequences: int,
    template: str | None,
    opening: dict[str, Any],
    **settings: Any,
) -> None:
    """Answer every line of IN.jsonl into OUT.jsonl, many at a time, in the order in which they are done.

    A line is {"prompt": "..."} or {"messages": [...]}, with an "id" (else it is the line's number) and any settings of
    its own, such as "temperature". A run that was cut off goes on where it was. Exit code 1: some lines have an error.
    """
    if Path(source).exists() and Path(target).exists() and os.path.samefile(source, target):
        raise BadInput(f"{source} is both what to answer and where to; give two files")
    lines = read_lines(source)
    done = finished(Path(target))
    left = [(name, line) for name, line in lines if name not in done]
    screen = Screen()
    said = {**GREEDY, **given(ctx, settings)}
    failed = 0
    with open(target, "a", encoding="utf-8") as file:
        if left:
            with load_model(model, screen, sequences=sequences, **opening) as llm:
                failed = _answer_all(llm, left, said, template, file, screen, len(lines), sequences)
    screen.note(f"{len(left):,} of {len(lines):,} lines answered" + (f", {failed:,} with an error" if failed else ""))
    ctx.exit(1 if failed else 0)


def _answer_all(
    llm: LLM,
    left: list[tuple[str, str]],
    settings: dict[str, Any],
    template: str | None,
    file: IO[str],
    screen: Screen,
    total: int,
    sequences: int,
) -> int:
    """Writes a result as soon as it is there: how many are errors."""
    failed, waiting = 0, iter(left)
    running: dict[Future[Line], str] = {}
    with ThreadPoolExecutor(sequences) as pool, lines_bar(screen) as bar:
        for number in range(len(left)):
            while len(running) < 2 * sequences and (more := next(waiting, None)) is not None:
                running[pool.submit(answer, llm, more[1], settings, template)] = more[0]
            first = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            result = {"id": json.loads(running.pop(first)), **first.result()}
            failed += "error" in result
            file.write(json.dumps(result, ensure_ascii=False) + "\n")
            file.flush()
            bar.update(total - len(left) + number + 1, total)
    return failed


def answer(llm: LLM, text: str, settings: dict[str, Any], template: str | None) -> Line:
    """What becomes of a line: the answer, or what is wrong with it."""
    try:
        line = json.loads(text)
        if not isinstance(line, dict) or ("prompt" in line) == ("messages" in line):
            raise BadInput('a line must be {"prompt": "..."} or {"messages": [...]}, and may have settings')
        own = {name: value for name, value in line.items() if name not in ("id", "prompt", "messages")}
        said = {**settings, **own}
        sampling(None, GREEDY, said)  # so that there is nothing in it but settings
        done = _continued(llm, line["prompt"], said) if "prompt" in line else _replied(llm, line, said, template)
    except json.JSONDecodeError as error:
        return {"error": f"is no JSON: {error}"}
    except RwkvGpuError as error:
        if isinstance(error, DeviceError):
            raise
        return {"error": str(error)}
    thoughts = {"reasoning": done.reasoning} if done.reasoning else {}
    usage = {"prompt_tokens": done.stats.prompt_tokens, "new_tokens": done.stats.new_tokens}
    return {"text": done.text, **thoughts, "finish_reason": done.finish_reason, **usage}


def _continued(llm: LLM, prompt: object, said: dict[str, Any]) -> Completion:
    if not isinstance(prompt, str):
        raise BadInput(f"prompt is a {type(prompt).__name__}; it must be a text")
    return llm.generate(prompt, **said)


def _replied(llm: LLM, line: Line, said: dict[str, Any], template: str | None) -> Completion:
    *before, last = check_messages(line["messages"])
    if last["role"] != "user":
        raise BadInput(f"the last message is of {last['role']}; it must be of user, to be answered")
    return llm.chat(messages=before, template=template).send(last["content"] or "", **said)


def read_lines(path: str) -> list[tuple[str, str]]:
    """Each line that is not empty, with its id as JSON."""
    lines: dict[str, str] = {}
    for number, text in enumerate(read_text(path).splitlines(), 1):
        if not text.strip():
            continue
        try:
            name = json.loads(text)["id"]
        except (ValueError, TypeError, LookupError):
            name = number
        key = json.dumps(name)
        if key in lines:
            raise BadInput(f"{path}: line {number} has the id {key} of a line before it; ids must differ")
        lines[key] = text
    return list(lines.items())


def finished(path: Path) -> set[str]:
    """The ids that a file of results has; what was cut off at its end is taken away."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    whole, newline, rest = data.rpartition(b"\n")
    names = {_result_id(path, number, line) for number, line in enumerate(whole.splitlines(), 1)}
    if rest:
        if not BEGINNING.startswith(rest[: len(BEGINNING)]):
            raise BadInput(f"{path}: is no file of results; give another, or one that is not there yet")
        os.truncate(path, len(whole + newline))
    return names


def _result_id(path: Path, number: int, line: bytes) -> str:
    try:
        result = json.loads(line)
        if "text" in result or "error" in result:
            return json.dumps(result["id"])
    except (ValueError, TypeError, LookupError):
        pass
    raise BadInput(f"{path}: line {number} is no result of a batch; give another file, or one that is not there yet")
