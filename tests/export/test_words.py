"""Exported tokenizers and templates give the same results as Python's. The tokenizers run in Chromium."""

import gzip
import json
import shutil
from importlib import resources

import pytest

from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.errors import UnsupportedModel
from rwkv_gpu.export.words import CONVERSATIONS, chat_data, join, tokenizer_data
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.text.template import ChatTemplate
from rwkv_gpu.text.tokenizer import load_tokenizer
from tests.export.browser import needs_chromium, run_in_browser
from tests.golden.record_tokens import FILE, vocabularies
from tests.golden_files import golden

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
@needs_chromium
def test_tokens_in_a_browser_are_those_of_python(tmp_path):
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
    with resources.as_file(resources.files("rwkv_gpu.export") / "web" / "tokenizer.js") as script:
        shutil.copy(script, tmp_path)
    found = run_in_browser(tmp_path, SCRIPT)
    assert {case["name"] for case in cases} >= {"rwkv", "spm", "gpt2 qwen2", "gpt2 llama-bpe", "gpt2 kimi-k2"}
    assert found == {"count": len(cases) * len(texts), "wrong": []}


def test_prompts_of_exported_templates_are_those_of_the_template():
    for path in (builtin_model(), golden("tiny-lfm2.gguf"), golden("tiny-mamba2.gguf")):
        with GGUFFile.open(path) as file:
            chat = chat_data(file.metadata, len(file.metadata["tokenizer.ggml.tokens"]))
            template = ChatTemplate.from_metadata(file.metadata)
        assert chat is not None
        for messages in CONVERSATIONS:
            assert join(chat, messages) == template.render(
                messages, **({} if template.built_in else {"enable_thinking": True})
            )


def test_a_template_of_another_form_is_not_exported():
    with GGUFFile.open(builtin_model()) as file:
        source = "{% for m in messages|reverse %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        metadata = {**file.metadata, "tokenizer.chat_template": source}
        assert chat_data(metadata, len(metadata["tokenizer.ggml.tokens"])) is None
