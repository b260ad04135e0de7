"""Tests with other programs that use OpenAI's API: litellm, LangChain, Simon Willison's llm, lm-eval."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.filterwarnings("default")
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def expected(server):
    return server.llm.create_chat_completion(HI, max_tokens=6, temperature=0)["choices"][0]["message"]["content"]


def test_litellm(url, expected, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # reads no table from the network
    litellm = pytest.importorskip("litellm", reason="make test-clients installs it")
    ask = {
        "model": "openai/quiet",
        "api_base": url,
        "api_key": "none",
        "messages": HI,
        "max_tokens": 6,
        "temperature": 0,
    }
    assert litellm.completion(**ask).choices[0].message.content == expected
    chunks = litellm.completion(**ask, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected


def test_langchain(url, expected):
    langchain = pytest.importorskip("langchain_openai", reason="make test-clients installs it")
    model = langchain.ChatOpenAI(base_url=url, api_key="none", model="quiet", max_tokens=6, temperature=0)
    assert model.invoke("Hi").content == expected
    assert "".join(chunk.content for chunk in model.stream("Hi")) == expected


def test_llm(url, expected, tmp_path, monkeypatch):
    pytest.importorskip("llm", reason="make test-clients installs it")
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    described = [{"model_id": "quiet", "model_name": "quiet", "api_base": url}]
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(described))
    command = [
        sys.executable,
        "-m",
        "llm",
        "-m",
        "quiet",
        "--key",
        "none",
        "-o",
        "max_tokens",
        "6",
        "-o",
        "temperature",
        "0",
    ]
    done = subprocess.run([*command, "Hi"], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == expected.strip(), done.stderr


def test_lm_eval_gets_the_log_probabilities_of_the_library(server, url):
    models = pytest.importorskip("lm_eval.models.openai_completions", reason="make test-clients installs it")
    from lm_eval.api.instance import Instance

    class Tokenizer:
        """The model's own tokenizer, in place of one that would be downloaded."""

        eot_token = 0

        def encode(self, text):
            return server.llm.tokenize(text) if isinstance(text, str) else [server.llm.tokenize(one) for one in text]

    client = models.LocalCompletionsAPI(
        base_url=f"{url}/completions", model="quiet", tokenizer_backend=None, max_length=512, batch_size=1
    )
    client.tokenizer, client.tokenizer_backend, client.tokenized_requests = Tokenizer(), "own", True
    pairs = [("The sea", " is wide"), ("A fish", " swims")]
    asked = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    for (context, rest), (found, _) in zip(pairs, client.loglikelihood(asked), strict=True):
        ids, begun = server.llm.tokenize(context + rest), len(server.llm.tokenize(context))
        assert found == pytest.approx(float(server.llm.logprobs(ids)[begun - 1 :].sum()), abs=1e-5)
