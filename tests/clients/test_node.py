"""Tests with OpenAI's and Anthropic's JavaScript clients, and Vercel's ai. `make test-clients` installs them by npm."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.scripted import call

HERE = Path(__file__).resolve().parent
HI = [{"role": "user", "content": "Hi"}]


def needs(package: str) -> str:
    """Returns the path of node. Skips a test if node or the package is missing."""
    node = shutil.which("node")
    if node is None or not (HERE / "node_modules" / package).is_dir():
        pytest.skip("make test-clients installs it")
    return node


def run(script: str, package: str, *arguments: str) -> dict:
    """Runs a script and returns its output."""
    node = needs(package)
    command = [node, str(HERE / script), *arguments]
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


@pytest.fixture
def ai() -> None:
    """Skips a test before its script begins if the package is missing."""
    needs("ai")


@pytest.mark.parametrize("provider", ["responses", "chat", "anthropic", "compatible"])
@pytest.mark.usefixtures("ai")
def test_vercel_ai(root, script, provider):
    rome = '{"city": "Rome"}'
    loop = f"<think>Look it up.</think>{call('weather', rome)}", "It is sunny in Rome."
    script.say(*loop, *loop, call("json", rome) if provider == "anthropic" else rome)
    found = run("ai_node.mjs", "ai", root, provider)
    assert found["text"] == found["streamed"] == "It is sunny in Rome." and found["steps"] == 2
    assert (found["called"], found["object"]) == (["Rome", "Rome"], {"city": "Rome"})
    if provider in ("anthropic", "compatible"):
        assert found["reasoning"] == "Look it up."
    assert all("sunny, 21 degrees in Rome" in script.prompts[at] for at in (1, 3))
