"""OpenAI's and Anthropic's clients for JavaScript. `make test-clients` installs them by npm."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
HI = [{"role": "user", "content": "Hi"}]


def run(script: str, package: str, url: str) -> dict:
    """What a script prints; skips where its package is not there."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules" / package).is_dir():
        pytest.skip("make test-clients installs it")
    command = [node, str(HERE / script), url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def expected(server):
    return server.llm.create_chat_completion(HI, max_tokens=6, temperature=0)["choices"][0]["message"]["content"]


def test_openai_node(server, url, expected):
    found = run("openai_node.mjs", "openai", url)
    assert found["text"] == found["streamed"] == found["response"] == expected
    assert (found["models"], found["refused"]) == (["quiet"], 404)
    assert found["size"] == len(server.llm.embed("The sea"))
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    assert found["call"] == found["streamedCall"] == found["responseCall"] == call


def test_anthropic_node(url, expected):
    found = run("anthropic_node.mjs", "@anthropic-ai/sdk", url)
    assert found["text"] == found["streamed"] == found["final"] == expected
    assert (found["reason"], found["refused"]) == ("max_tokens", [True, 404])
    assert found["counted"] == found["prompt"]
    assert found["call"] == found["streamedCall"] == ["tool_use", "weather", {"city": "Rome"}]
