"""Tests with Anthropic's and Ollama's Python clients, and tools through OpenAI's API."""

import json

import pytest

from tests.server.gate import until

pytestmark = pytest.mark.filterwarnings("default")
HI = [{"role": "user", "content": "Hi"}]
ROME = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}}
CITY = {**ROME, "required": ["city"], "additionalProperties": False}


@pytest.fixture
def claude(server):
    anthropic = pytest.importorskip("anthropic", reason="make test-clients installs it")
    with anthropic.Anthropic(base_url=f"http://localhost:{server.port}", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ollama(server):
    package = pytest.importorskip("ollama", reason="make test-clients installs it")
    with package.Client(host=f"http://localhost:{server.port}") as client:
        yield client


def test_messages_are_answered_whole_streamed_and_counted(claude):
    ask = {"model": "quiet", "max_tokens": 6, "messages": HI, "extra_body": {"temperature": 0}}
    message = claude.messages.create(**ask)
    assert message.usage.output_tokens == 6 and message.stop_reason == "max_tokens"
    with claude.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == message.content[0].text == final.content[0].text
    count = claude.messages.count_tokens(model="quiet", messages=HI)
    assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


def test_messages_with_tools(claude):
    tools = [{"name": "weather", "description": "of a city", "input_schema": CITY}]
    ask = {"model": "quiet", "max_tokens": 300, "messages": HI, "tools": tools}
    choice = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    message = claude.messages.create(**ask, tool_choice=choice)
    [block] = message.content
    assert (message.stop_reason, block.type) == ("tool_use", "tool_use")
    assert (block.name, block.input) == ("weather", {"city": "Rome"})
    with claude.messages.stream(**ask, tool_choice=choice) as stream:
        [streamed] = stream.get_final_message().content
    assert streamed.input == {"city": "Rome"}


def test_errors_raise_the_exception_classes_of_the_anthropic_client(claude):
    import anthropic

    with pytest.raises(anthropic.NotFoundError, match="no model 'none'"):
        claude.messages.create(model="none", max_tokens=2, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        claude.messages.create(model="quiet", max_tokens=2, messages=HI, extra_body={"temperature": -1})


def test_an_anthropic_stream_that_is_closed_ends_the_request(claude, server):
    with claude.messages.stream(model="quiet", max_tokens=2000, messages=HI) as stream:
        next(iter(stream.text_stream))
    until(lambda: not server.engine.busy)


def test_ollama_chats_generates_lists_and_embeds(ollama):
    options = {"num_predict": 6, "temperature": 0}
    answer = ollama.chat(model="quiet", messages=HI, options=options)
    stream = ollama.chat(model="quiet", messages=HI, options=options, stream=True)
    assert answer.message.content == "".join(part.message.content for part in stream) and answer.done
    assert 0 < ollama.generate(model="quiet", prompt="Hi", options=options, raw=True).eval_count <= 6
    assert [model.model for model in ollama.list().models] == ["quiet:latest"]
    assert [model.model for model in ollama.ps().models] == ["quiet:latest"]
    assert ollama.show("quiet").details.family == "rwkv7"
    assert len(ollama.embed(model="quiet", input=["a", "b"]).embeddings) == 2
    held = ollama.chat(model="quiet", messages=HI, format=CITY, options={"num_predict": 60})
    assert json.loads(held.message.content) == {"city": "Rome"}


def test_errors_raise_the_exceptions_of_the_ollama_client(ollama):
    import ollama as package

    with pytest.raises(package.ResponseError, match="no model 'none'"):
        ollama.chat(model="none", messages=HI)


def test_tools_work_with_the_client_of_openai(url):
    openai = pytest.importorskip("openai", reason="make test-clients installs it")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    ask = {"model": "quiet", "messages": HI, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(**ask, max_tokens=300)
        [call] = answer.choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Rome"})
        with client.chat.completions.stream(**ask, max_tokens=300) as stream:
            [streamed] = stream.get_final_completion().choices[0].message.tool_calls
        assert json.loads(streamed.function.arguments) == {"city": "Rome"}
        said = answer.choices[0].message.model_dump(exclude_none=True)
        talk = [*HI, said, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        assert client.chat.completions.create(model="quiet", messages=talk, tools=tools, max_tokens=3).choices
