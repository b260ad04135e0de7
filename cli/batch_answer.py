"""The answer to one line of a batch."""

from dataclasses import dataclass
from typing import Any

from rwkv_gpu import LLM, Completion
from rwkv_gpu.errors import BadInput, DeviceError, RwkvGpuError
from rwkv_gpu.llm.completion import GREEDY, sampling
from rwkv_gpu.llm.validate import shown
from rwkv_gpu.text.messages import check_messages, joined

from .batch_files import Line, parsed_line
from .sampling import line_settings


@dataclass(frozen=True)
class Job:
    """Settings shared by all lines."""

    settings: dict[str, Any]  # those that the user gave
    template: str | None
    sequences: int


def answer(llm: LLM, text: str, job: Job) -> Line:
    """The result of a line: its answer, or its error."""
    try:
        line = parsed_line(text)
        if ("prompt" in line) == ("messages" in line):
            raise BadInput('a line must have "prompt" or "messages", and can have settings')
        own = {name: value for name, value in line.items() if name not in ("id", "prompt", "messages")}
        settings: dict[str, Any] = {**llm.default_settings(GREEDY), **job.settings, **line_settings(own)}
        sampling(None, GREEDY, settings)  # refuses unknown settings before any work
        done = _continued(llm, line["prompt"], settings) if "prompt" in line else _replied(llm, line, settings, job)
    except RwkvGpuError as error:
        if isinstance(error, DeviceError):
            raise
        return {"error": str(error)}
    thoughts = {"reasoning": done.reasoning} if done.reasoning else {}
    usage = {"prompt_tokens": done.stats.prompt_tokens, "new_tokens": done.stats.new_tokens}
    return {"text": done.text, **thoughts, "finish_reason": done.finish_reason, **usage}


def _continued(llm: LLM, prompt: object, settings: dict[str, Any]) -> Completion:
    if not isinstance(prompt, str):
        raise BadInput(f"prompt is {shown(prompt)}; it must be a string")
    return llm.stream(prompt, **settings).wait()


def _replied(llm: LLM, line: Line, settings: dict[str, Any], job: Job) -> Completion:
    *before, last = check_messages(line["messages"])
    if last["role"] != "user":
        raise BadInput(f"the last message has the role {last['role']}; it must be user")
    return llm.chat(messages=before, template=job.template).stream(joined(last["content"]), **settings).wait()
