"""OpenAI's client for JavaScript. `make test-clients` installs it by npm."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.skipif(not (HERE / "node_modules" / "openai").is_dir(), reason="make test-clients installs it")
def test_openai_node(server, url):
    node = shutil.which("node")
    assert node is not None
    command = [node, str(HERE / "openai_node.mjs"), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    messages = [{"role": "user", "content": "Hi"}]
    expected = server.llm.create_chat_completion(messages, max_tokens=6, temperature=0)["choices"][0]["message"][
        "content"
    ]
    assert found["text"] == found["streamed"] == found["response"] == expected
    assert (found["models"], found["refused"]) == (["quiet"], 404)
    assert found["size"] == len(server.llm.embed("The sea"))
