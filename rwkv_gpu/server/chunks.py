"""An answer as chunks of OpenAI's API, for the modules of other APIs to translate."""

from collections.abc import AsyncGenerator, Iterator

from rwkv_gpu.llm.answer import PromptProgress
from rwkv_gpu.llm.chat_completion import Reply
from rwkv_gpu.llm.completion import Event
from rwkv_gpu.llm.text_completion import TextReply

from .answers import Answer
from .call import Json
from .service import Running


def chunks_for(reply: Reply | TextReply, answer: Answer, index: int, one: Event | PromptProgress) -> Iterator[Json]:
    """The chunks for one event of an answer."""
    if isinstance(one, PromptProgress):
        yield reply.progress(index, one, answer.stats)
        return
    for chunk in reply.chunks(index, one):
        yield {**chunk, "timings": answer.stats.timings} if reply.fields.timings else chunk


async def chunks_of(running: Running) -> AsyncGenerator[Json]:
    """Yields the chunks of a chat completion with one answer, from the first text to the finish reason."""
    reply, [answer] = running.prepared.reply, running.answers.each
    assert isinstance(reply, Reply)
    async for updates in running:
        for index, one in updates:
            for chunk in chunks_for(reply, answer, index, one):
                yield chunk
    for chunk in reply.closing(0, answer.completion):
        yield chunk
