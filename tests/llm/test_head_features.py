"""Draft heads with all features that change answers or store state: answers equal those without drafts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.llm import drafts
from tests.engine.test_adapters import write
from tests.golden.eagle import write_eagle
from tests.golden.heads import write_headed
from tests.golden_files import golden

LENGTH = 16
DEFAULTS: dict[str, Any] = {"device": "cpu", "context": 256, "chunk_size": 32, "kv": "f32"}
PROMPT = [5, 6, 7, 9, 11, 13, 17, 19, 23]


class Headed(NamedTuple):
    """A model whose head drafts, and the name of its golden model."""

    path: Path
    base: str
    draft: Path | None


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Headed]:
    """Returns a transformer with EAGLE-3, one with windows and MTP, and a hybrid with MTP."""
    folder = tmp_path_factory.mktemp("features")
    eagle = Headed(golden("tiny-llama.gguf"), "llama", write_eagle(folder / "eagle.gguf", "llama"))
    names = "mimo2", "qwen35"
    return [eagle, *(Headed(write_headed(folder / f"{name}.gguf", name), name, None) for name in names)]


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Makes drafts of the maximum length, regardless of time."""
    monkeypatch.setattr(drafts, "Speculator", partial(Speculator, always=True))


@contextmanager
def opened(model: Headed, *, drafting: bool, **how: Any) -> Iterator[rwkv_gpu.LLM]:
    """Loads a model with its head, or without."""
    how = {**DEFAULTS, **how}
    draft = {"draft": model.draft} if drafting else {}
    with rwkv_gpu.load(model.path, no_draft=not drafting, **draft, **how) as llm:
        assert llm.info.drafts == drafting
        yield llm


def answered(llm: rwkv_gpu.LLM, prompt: list[int] = PROMPT, **settings: Any) -> Any:
    """Generates an answer. Returns all values that must not depend on drafts."""
    events = list(generation := llm.stream(prompt, **{"max_tokens": LENGTH, "temperature": 0.0, **settings}))
    done = generation.completion
    logprobs = [event.logprob for event in events if event.token is not None]
    return done.text, list(done.tokens), done.finish_reason, np.array(logprobs), done.stats


def check_same(found: Any, expected: Any) -> int:
    """Compares two answers, and returns the number of drafted tokens."""
    assert found[:3] == expected[:3]
    np.testing.assert_allclose(found[3], expected[3], atol=1e-3)  # steps of more rows add in another order
    return found[4].drafted_tokens


SETTINGS: dict[str, dict[str, Any]] = {
    "logprobs": {"logprobs": 3, "min_tokens": LENGTH},
    "sampled logprobs": {"logprobs": 2, "temperature": 1.0, "seed": 4, "top_k": 30, "min_p": 0.01},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.3, "presence_penalty": 0.2, "min_tokens": LENGTH},
    "rare settings": {"dry_multiplier": 0.8, "typical_p": 0.9, "temperature": 0.8, "seed": 2},
    "grammar": {"regex": "[a-z]{3}( [a-z0-9]{2,4}){3}", "max_tokens": 40},
    "biases": {"logit_bias": {40: 5.0, 41: -100.0}, "min_tokens": LENGTH},
    "fewer drafts": {"draft_tokens": 1, "min_tokens": LENGTH},
}


def test_request_settings_work_with_draft_heads(models):
    for model in models:
        with opened(model, drafting=False) as plain, opened(model, drafting=True) as drafting:
            drafted = {name: check_same(answered(drafting, **how), answered(plain, **how)) for name, how in
                       SETTINGS.items()}  # fmt: skip
            assert all(drafted.values()), drafted
            tokens = answered(plain, min_tokens=LENGTH)[1]
            stop = plain.tokenizer.decode(tokens[9:12])
            for how in ({"stop": [stop]}, {"stop_ids": [tokens[9]]}):
                found = answered(drafting, min_tokens=0, **how)
                assert check_same(found, answered(plain, min_tokens=0, **how)) and found[2] == "stop"


def _lora(model: Headed, folder: Path) -> dict[str, Any]:
    path = write(folder, model.base, f"lora-{model.base}", parts=("attn_q", "attn_output", "ffn_down"))
    return {"lora": [(str(path), 1.0)]}


LOADED: dict[str, Callable[[Headed, Path], dict[str, Any]]] = {
    "q8 cache": lambda *_: {"kv": "q8"},
    "float16 cache": lambda *_: {"kv": "f16"},
    "lora": _lora,
    "context shift": lambda *_: {"context": 64, "context_shift": 4},
    "small chunks": lambda *_: {"chunk_size": 8, "cache_bytes": 0},
}


def test_model_options_work_with_draft_heads(models, tmp_path):
    for model in models:
        for name, options in LOADED.items():
            how = options(model, tmp_path)
            length = 100 if name == "context shift" else LENGTH
            asked = {"max_tokens": length, "min_tokens": length}
            with opened(model, drafting=False, **how) as plain, opened(model, drafting=True, **how) as drafting:
                expected = answered(plain, **asked)
                assert check_same(answered(drafting, **asked), expected) > 10, name
            assert len(expected[1]) == length


def test_batches_of_texts_work_with_draft_heads(models):
    prompts = [[*PROMPT, *range(30, 30 + 9 * n)] for n in range(4)]
    for model in models:
        with opened(model, drafting=False) as plain, opened(model, drafting=True, sequences=4) as drafting:
            expected = [answered(plain, prompt, min_tokens=LENGTH) for prompt in prompts]
            found: dict[int, Any] = {}

            def ask(n: int, llm=drafting, found=found) -> None:
                found[n] = answered(llm, prompts[n], min_tokens=LENGTH)

            threads = [Thread(target=ask, args=(n,)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for n in range(4):
            assert check_same(found[n], expected[n])


CHAT = {"template": "chatml", "temperature": 0, "max_tokens": 8, "min_tokens": 8}


def test_chats_with_a_common_prefix_work_with_draft_heads(models):
    for model in models:
        said = []
        for drafting in (False, True):
            with opened(model, drafting=drafting, context=512) as llm:
                done = [llm.chat(system="Answer in one line. " * 4, **CHAT).send(text) for text in ("Hi", "Who?")]
            assert done[1].stats.reused_tokens > 50
            said.append([one.text for one in done])
        assert said[0] == said[1]


def test_sessions_continue_with_and_without_drafts(models, tmp_path):
    for model in models:
        texts = []
        for writes in (False, True):
            with opened(model, drafting=writes) as llm:
                chat = llm.chat(**CHAT)
                chat.send("Hello")
                chat.save(tmp_path / "chat")
            for reads in (False, True):
                with opened(model, drafting=reads) as llm:
                    done = llm.load_chat(tmp_path / "chat").send("And?")
                    texts.append(done.text)
                    assert done.stats.reused_tokens > 20
        assert len(set(texts)) == 1


def test_features_work_where_the_device_counts_right_drafts(models, adapter, monkeypatch, tmp_path):
    """Requests that the host samples cannot follow a step whose result it does not know."""
    monkeypatch.setitem(DEFAULTS, "device", adapter.index)
    windows = models[1:2]
    test_request_settings_work_with_draft_heads(windows)
    test_model_options_work_with_draft_heads(windows, tmp_path)
    test_batches_of_texts_work_with_draft_heads(windows)
