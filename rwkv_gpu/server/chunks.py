"""An answer as chunks of OpenAI's API, for the modules of other APIs to translate."""

from collections.abc import AsyncGenerator

from rwkv_gpu.llm.chat_completion import Reply
from rwkv_gpu.llm.completion import Event

from .call import Json
from .service import Running


async def chunks_of(running: Running) -> AsyncGenerator[Json]:
    """Yields the chunks of a chat completion with one answer, from the first text to the finish reason."""
    reply = running.prepared.reply
    assert isinstance(reply, Reply)
    async for news in running:
        for index, one in news:
            if isinstance(one, Event):
                for chunk in reply.chunks(index, one):
                    yield chunk
    for chunk in reply.closing(0, running.answers.completions[0]):
        yield chunk
