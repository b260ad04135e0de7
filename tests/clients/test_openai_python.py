"""Tests with OpenAI's Python client: sync and async, whole and streamed, parsed by a schema, and its errors."""

import asyncio

import pytest

from tests.server.gate import until

openai = pytest.importorskip("openai", reason="make test-clients installs it")

pytestmark = pytest.mark.filterwarnings("default")
HI = [{"role": "user", "content": "Hi"}]
ASK = {"model": "quiet", "messages": HI, "max_tokens": 6, "temperature": 0}


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as one:
        yield one


def test_a_chat_is_answered_whole_and_streamed(client, server):
    expected = server.llm.create_chat_completion(HI, max_tokens=6, temperature=0)["choices"][0]["message"]["content"]
    answer = client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == expected
    assert answer.usage.completion_tokens == 6
    chunks = [*client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == expected
    assert chunks[-1].usage.completion_tokens == 6
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["sea"]}}}
    with client.chat.completions.stream(**{**ASK, "max_tokens": 20}, response_format=form) as stream:
        assert stream.get_final_completion().choices[0].message.content == '"sea"'


def test_the_async_client_gets_the_same_answers(url):
    async def ask():
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
            stream = await client.chat.completions.create(**ASK, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            several = await asyncio.gather(*(client.chat.completions.create(**ASK) for _ in range(5)))
            return {text, *(one.choices[0].message.content for one in several)}

    assert len(asyncio.run(ask())) == 1


def test_an_answer_is_parsed_by_its_schema(client):
    pydantic = pytest.importorskip("pydantic")

    class Fish(pydantic.BaseModel):
        small: bool

    answer = client.chat.completions.parse(**{**ASK, "max_tokens": 30}, response_format=Fish)
    assert answer.choices[0].message.parsed.small in (True, False)


def test_several_answers_have_log_probabilities(client):
    answer = client.chat.completions.create(**{**ASK, "temperature": 1}, n=3, seed=1, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert all(len(choice.logprobs.content[0].top_logprobs) == 2 for choice in answer.choices)


def test_a_completion_is_the_same_streamed_and_may_echo_its_prompt(client):
    ask = {"model": "quiet", "prompt": "The sea", "max_tokens": 4, "temperature": 0}
    answer = client.completions.create(**ask, echo=True, logprobs=1)
    assert answer.choices[0].text.startswith("The sea")
    assert answer.choices[0].logprobs.token_logprobs[0] is None
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True))
    assert "The sea" + text == answer.choices[0].text


def test_embeddings_and_models_are_those_of_the_server(client, server):
    found = client.embeddings.create(model="quiet", input=["The sea", "A fish"])  # requests base64 by default
    assert found.data[1].embedding == pytest.approx(server.llm.embed("A fish").tolist(), abs=1e-6)
    assert [model.id for model in client.models.list()] == ["quiet"]
    assert client.models.retrieve("quiet").id == "quiet"


def test_responses_are_returned_whole_and_streamed(client):
    ask = {"model": "quiet", "input": "Hi", "max_output_tokens": 20, "temperature": 0}
    form = {"format": {"type": "json_schema", "name": "a", "schema": {"enum": ["sea"]}}}
    response = client.responses.create(**ask, text=form)
    assert (response.status, response.output_text) == ("completed", '"sea"')
    with client.responses.stream(**ask, text=form) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == response.output_text
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    events = [*client.responses.create(**{**ask, "max_output_tokens": 3}, stream=True)]
    assert events[-1].type == "response.incomplete"


def test_errors_raise_the_exception_classes_of_the_openai_client(client):
    for change, kind in [
        ({"model": "nothing"}, openai.NotFoundError), ({"temperature": -1}, openai.BadRequestError),
    ]:  # fmt: skip
        with pytest.raises(kind) as refused:
            client.chat.completions.create(**{**ASK, **change})
        assert refused.value.request_id.startswith("req_")
        assert refused.value.body["message"]


def test_a_stream_ends_when_the_client_leaves_it(client, server):
    stream = client.chat.completions.create(
        **{**ASK, "max_tokens": 3000}, stream=True, extra_body={"logit_bias": {"0": -100}}
    )
    next(iter(stream))
    stream.close()

    until(lambda: not server.engine._slots.sequences)
