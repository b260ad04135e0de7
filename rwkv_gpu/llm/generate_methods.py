"""Methods that continue texts: one or many, whole or event by event, in plain Python or asyncio."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Unpack, overload

from ..engine.sampling_params import SamplingParams
from ..errors import BadInput
from . import validate
from .batches import await_all, grouped, wait_all
from .chat import Truncate
from .chat_completion import answers
from .completion import GREEDY, Completion, Settings, form, sampling, seeded
from .generation import AsyncGeneration, Generation, OnPrompt
from .open_model import OpenModel, Prompt, PromptRequest, TemplateIds, TemplateText, is_several, prompts_of


class Continuing(Settings, total=False):
    """Keyword arguments of a prompt: settings of its answer, and what to do if it is too long."""

    truncate: Truncate | None


class GenerateMethods(OpenModel):
    """`generate`, `stream`, `generate_batch`, and their asyncio forms prefixed with a."""

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, n: None = None, **settings: Unpack[Continuing]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, n: int, **settings: Unpack[Continuing]
    ) -> list[Completion]: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        n: None = None,
        **settings: Unpack[Continuing],
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        **settings: Unpack[Continuing],
    ) -> Completion | list[Completion] | list[list[Completion]]:
        """Continues a prompt until the model ends it, a stop string is found, or `max_tokens` are generated.

        A list of prompts returns a list of completions, computed together. With `n`, each prompt gets a list of `n`
        answers; a given seed is incremented for each. `settings` are fields of SamplingParams; the default is greedy.
        `schema`, `regex` or `grammar` constrain the answer. A prompt longer than the context is refused. With
        `truncate="left"`, it loses its beginning instead.
        """
        if n is None and not is_several(prompt):
            return self.stream(prompt, params, **settings).wait()  # type: ignore[arg-type]
        count = 1 if n is None else answers(n)
        asked = self._asked(prompts_of("prompt", prompt), "prompt", count, params, settings)
        done = wait_all(partial(self._start, Generation, max_unread=None), asked, self.info.sequences)
        return _by_prompt(done, n, is_several(prompt))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        **settings: Unpack[Continuing],
    ) -> Generation:
        """`generate` event by event. `on_prompt` gets the number of prompt tokens processed so far, and the total."""
        [asked] = self._asked([prompt], "prompt", 1, params, settings)
        return self._start(Generation, asked, on_prompt=on_prompt)

    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, n: None = None, **settings: Unpack[Continuing]
    ) -> Completion: ...
    @overload
    async def agenerate(
        self,
        prompt: list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        n: None = None,
        **settings: Unpack[Continuing],
    ) -> list[Completion]: ...
    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, n: int, **settings: Unpack[Continuing]
    ) -> list[Completion]: ...
    async def agenerate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        **settings: Unpack[Continuing],
    ) -> Completion | list[Completion] | list[list[Completion]]:
        """`generate` for asyncio."""
        if n is None and not is_several(prompt):
            return await self.astream(prompt, params, **settings).wait()  # type: ignore[arg-type]
        count = 1 if n is None else answers(n)
        asked = self._asked(prompts_of("prompt", prompt), "prompt", count, params, settings)
        done = await await_all(partial(self._start, AsyncGeneration, max_unread=None), asked, self.info.sequences)
        return _by_prompt(done, n, is_several(prompt))

    def astream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        on_prompt: OnPrompt | None = None,
        **settings: Unpack[Continuing],
    ) -> AsyncGeneration:
        """`stream` for asyncio: `async for event in llm.astream("The sea")`."""
        [asked] = self._asked([prompt], "prompt", 1, params, settings)
        return self._start(AsyncGeneration, asked, on_prompt=on_prompt)

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[Continuing],
    ) -> list[Completion]:
        """Continues many prompts together. `progress` gets the number done, and the total."""
        if isinstance(prompts, str):
            raise BadInput("prompts is one text; give a list of them, or call generate")
        validate.called("progress", progress)
        every = validate.several("prompts", prompts, "prompts")
        asked = self._asked(every, "prompt", 1, params, settings)
        return wait_all(partial(self._start, Generation, max_unread=None), asked, self.info.sequences, progress)

    def _asked(
        self,
        prompts: Sequence[Prompt],
        name: str,
        n: int,
        params: SamplingParams | None,
        given: Mapping[str, Any],
    ) -> list[PromptRequest]:
        """Checks everything before starting anything: n answers to each prompt."""
        settings = {**given}
        truncate = settings.pop("truncate", None)
        params, shape = sampling(params, self.default_settings(GREEDY), settings), form(settings)
        params.check_vocabulary(self.vocab_size)
        every = [self._ids(prompt, truncate, params.max_tokens, name=name) for prompt in prompts]
        return [
            PromptRequest(
                ids, seeded(params, index), shape, is_turn=isinstance(prompt, TemplateText | TemplateIds),
                text=prompt if isinstance(prompt, str) else None,
            )
            for ids, prompt in zip(every, prompts, strict=True)
            for index in range(n)
        ]  # fmt: skip


def _by_prompt(
    done: list[Completion], n: int | None, several: bool
) -> Completion | list[Completion] | list[list[Completion]]:
    """Arranges answers as requested: for one prompt or several, one each or n."""
    if n is None:
        return done if several else done[0]
    return grouped(done, n) if several else done
