"""Exported tokenizers and templates give the same results as Python's. The tokenizers run in JavaScript."""

import gzip
import json

import pytest

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.export.files import script
from rwkv_gpu.export.words import CONVERSATIONS, chat_data, join, tokenizer_data
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.llm.chat_format import ChatFormat
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.export.browser import needs_javascript, run_without_gpu
from tests.golden.record_tokens import FILE, vocabularies
from tests.golden_files import golden
from tests.text import template_matrix

SCRIPT = """
import { Tokenizer } from "./tokenizer.js";
export default async function () {
  const wrong = [];
  let count = 0;
  for (const { name, data, cases } of await (await fetch("cases.json")).json()) {
    const tokenizer = new Tokenizer(data);
    for (const [text, plain, parsed, added, shown] of cases) {
      const found = [tokenizer.encode(text), tokenizer.encode(text, { parse: true })];
      found.push(tokenizer.encode(text, { special: true, parse: true }));
      found.push(tokenizer.decodeBytes(parsed, { special: true }));
      if (JSON.stringify(found) !== JSON.stringify([plain, parsed, added, shown])) wrong.push([name, text]);
      count++;
    }
  }
  return { count, wrong };
}
"""


@pytest.mark.long
@needs_javascript
def test_tokens_in_a_browser_equal_those_of_python(tmp_path):
    texts, cases = json.loads(gzip.decompress(FILE.read_bytes()))["texts"], []
    for name, make in vocabularies().items():
        try:
            data = tokenizer_data(make())
        except UnsupportedModel:
            continue
        tokenizer = load_tokenizer(make())
        rows = []
        for text in texts:
            plain, parsed = tokenizer.encode(text), tokenizer.encode(text, parse=True)
            shown = tokenizer.decode_bytes(parsed, special=True).decode("latin-1")
            rows.append([text, plain, parsed, tokenizer.encode(text, special=True, parse=True), shown])
        cases.append({"name": name, "data": data, "cases": rows})
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    for name in ("manifest.js", "tokenizer.js"):
        (tmp_path / name).write_text(script(name))
    found = run_without_gpu(tmp_path, SCRIPT)
    expected = {"rwkv", "spm", "gpt2 qwen2", "gpt2 llama-bpe", "gpt2 kimi-k2", "gemma4", "sarvam"}
    assert {case["name"] for case in cases} >= expected
    assert found == {"count": len(cases) * len(texts), "wrong": []}


def test_prompts_of_exported_templates_equal_those_of_the_template():
    for path in (builtin_model(), golden("tiny-lfm2.gguf"), golden("tiny-mamba2.gguf")):
        with GGUFFile.open(path) as file:
            chat = chat_data(file.metadata, len(file.metadata["tokenizer.ggml.tokens"]))
            template = ChatTemplate.from_metadata(file.metadata)
        for messages in CONVERSATIONS:
            if messages[0]["role"] == "system" and chat["system"] is None:
                continue
            assert join(chat, messages) == template.render(
                messages, **({} if template.built_in else {"enable_thinking": True})
            )


REFUSED = {  # templates of llama.cpp, and the reason
    "openai-gpt-oss-120b": "its answers are in channels",
    "MiniMax-M3": "changes messages in a way that a page cannot follow",
}


def chosen_by(chat, think):
    """Returns the chat format with reasoning on or off."""
    return {**chat, **chat["think"].get(str(think).lower(), {})}


@pytest.mark.long
def test_templates_of_models_are_exported_or_refused_with_a_reason():
    """Each prompt, with reasoning on, off and in earlier answers, is what Python makes, or the export says why not."""
    with GGUFFile.open(builtin_model()) as file:
        metadata, size = file.metadata, len(file.metadata["tokenizer.ggml.tokens"])
    refused, switched = {}, []
    for name, source in template_matrix.load()[0].items():
        given = {**metadata, "tokenizer.chat_template": source}
        try:
            chat = chat_data(given, size)
        except UnsupportedModel as error:
            refused[name] = str(error)
            continue
        form = ChatFormat(load_tokenizer(given), ChatTemplate.from_metadata(given), size)
        opening, closing = chat["thoughts"]
        texts = "a", f"{opening}\nb\n{closing}\n\nc", "d", " e\n", "f"
        messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
        for think in (None, True, False):
            expected = form.prompt(messages, think=think).transcript.text.decode()
            assert join(chosen_by(chat, think), messages) == expected, (name, think)
        switched += [name] if chat["think"] else []
    assert {"Qwen-Qwen3-0.6B", "ByteDance-Seed-OSS", "ibm-granite-granite-3.3-2B-Instruct"} <= {*switched}
    assert refused.keys() == REFUSED.keys()
    assert all(REFUSED[name] in text for name, text in refused.items())


def test_a_template_of_another_form_is_not_exported():
    with GGUFFile.open(builtin_model()) as file:
        source = "{% for m in messages|reverse %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        metadata = {**file.metadata, "tokenizer.chat_template": source}
        with pytest.raises(UnsupportedModel, match="changes messages|does not show"):
            chat_data(metadata, len(metadata["tokenizer.ggml.tokens"]))
