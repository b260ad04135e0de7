"""The answer to one line of a batch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rwkv_gpu import LLM, Completion
from rwkv_gpu.errors import BadInput, DeviceError, RwkvGpuError
from rwkv_gpu.llm.completion import GREEDY, sampling
from rwkv_gpu.llm.images import KINDS
from rwkv_gpu.llm.validate import shown
from rwkv_gpu.text.messages import check_messages

from .batch_files import Line, parsed_line
from .sampling import line_settings


@dataclass(frozen=True)
class Job:
    """Settings shared by all lines."""

    settings: dict[str, Any]  # the user's settings
    template: str | None
    sequences: int
    folder: str = ""  # the folder of the input file: paths of images are relative to it


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
    reasoning = {"reasoning": done.reasoning} if done.reasoning else {}
    usage = {"prompt_tokens": done.stats.prompt_tokens, "new_tokens": done.stats.new_tokens}
    return {"text": done.text, **reasoning, "finish_reason": done.finish_reason, **usage}


def _continued(llm: LLM, prompt: object, settings: dict[str, Any]) -> Completion:
    if not isinstance(prompt, str):
        raise BadInput(f"prompt is {shown(prompt)}; it must be a string")
    return llm.stream(prompt, **settings).wait()


def _replied(llm: LLM, line: Line, settings: dict[str, Any], job: Job) -> Completion:
    if not line["messages"]:
        check_messages(line["messages"])  # refuses an empty list, with which a chat could begin
    chat = llm.chat(messages=_located(line["messages"], job.folder), template=job.template)
    role = chat.messages[-1]["role"]
    if role != "user":
        raise BadInput(f"the last message has the role {role}; it must be user")
    return chat.regenerate(**settings).wait()


def _located(messages: Any, folder: str) -> Any:
    """The messages with paths in place of the names of image files."""
    return [_message(one, folder) for one in messages] if isinstance(messages, list) else messages


def _message(message: Any, folder: str) -> Any:
    parts = message.get("content") if isinstance(message, dict) else None
    return {**message, "content": [_part(part, folder) for part in parts]} if isinstance(parts, list) else message


def _part(part: Any, folder: str) -> Any:
    """A part of a message; an image that is not a URL is a file."""
    if not isinstance(part, dict) or part.get("type") not in KINDS:
        return part
    name = part.get("image_url", part.get("image", part.get("audio")))
    name = name.get("url") if isinstance(name, dict) else name
    if not isinstance(name, str) or name.startswith(("data:", "http:", "https:")):
        return part
    return {"type": "image", "image": Path(folder, name)}
