"""Frameworks for agents and typed answers run their tools. The model follows a script."""

import asyncio
import json

import pytest

from tests.clients.scripted import call

pytestmark = pytest.mark.filterwarnings("default")
CALL = call("weather", '{"city": "Rome"}')
ASK = "How is the weather in Rome?"
SUNNY = "It is sunny in Rome."
REPORT = '{"city": "Rome", "degrees": 21}'


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: the name of the city
    """
    return f"sunny, 21 degrees in {city}"


def ran(script) -> bool:
    """True if the last prompt has the result of the tool."""
    return "sunny, 21 degrees in Rome" in script.prompts[-1]


@pytest.fixture
def report():
    """Returns the schema of a typed answer."""
    from pydantic import BaseModel

    class Report(BaseModel):
        city: str
        degrees: int

    return Report


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_openai_agents(root, script, report, api):
    agents = pytest.importorskip("agents", reason="make test-clients installs it")
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
    given = {"base_url": f"{root}/v1", "api_key": "none", "max_retries": 0}

    async def run(streamed, **more):
        async with AsyncOpenAI(**given) as client:
            model = kind(model="scripted", openai_client=client)
            agent = agents.Agent(name="a", instructions="Be brief.", model=model, **more)
            if not streamed:
                return (await agents.Runner.run(agent, ASK)).final_output
            result = agents.Runner.run_streamed(agent, ASK)
            async for _ in result.stream_events():
                pass
            return result.final_output

    for streamed in (False, True):
        script.say(f"<think>Look it up.</think>{CALL}", SUNNY)
        tool = agents.function_tool(weather)
        assert asyncio.run(run(streamed, tools=[tool])) == SUNNY and ran(script)
        script.check()
    script.say(REPORT)
    assert asyncio.run(run(False, output_type=report)) == report(city="Rome", degrees=21)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_pydantic_ai(root, script, report, api):
    ai = pytest.importorskip("pydantic_ai", reason="make test-clients installs it")

    async def run(streamed, **more):
        from openai import AsyncOpenAI
        from pydantic_ai.models import openai
        from pydantic_ai.providers.openai import OpenAIProvider

        kind = openai.OpenAIChatModel if api == "chat" else openai.OpenAIResponsesModel
        client = AsyncOpenAI(base_url=f"{root}/v1", api_key="none", max_retries=0)
        model = kind("scripted", provider=OpenAIProvider(openai_client=client))
        async with client:
            agent = ai.Agent(model, instructions="Be brief.", **more)
            if not streamed:
                return (await agent.run(ASK)).output
            async with agent.run_stream(ASK) as result:
                return await result.get_output()

    for streamed in (False, True):
        script.say(f"<think>Look it up.</think>{CALL}", SUNNY)
        assert asyncio.run(run(streamed, tools=[weather])) == SUNNY and ran(script)
        script.check()
    rome = report(city="Rome", degrees=21)
    script.say(call("final_result", REPORT))
    assert asyncio.run(run(False, output_type=report)) == rome
    script.check()
    script.say(REPORT)
    assert asyncio.run(run(False, output_type=ai.NativeOutput(report))) == rome
    script.check()
    script.say(REPORT)
    assert asyncio.run(run(False, output_type=ai.PromptedOutput(report))) == rome


OPENAI_MODES = [
    "TOOLS", "TOOLS_STRICT", "PARALLEL_TOOLS", "FUNCTIONS", "JSON", "JSON_SCHEMA", "MD_JSON", "JSON_O1",
    "RESPONSES_TOOLS", "RESPONSES_TOOLS_WITH_INBUILT_TOOLS",
]  # fmt: skip


@pytest.mark.parametrize("mode", [*OPENAI_MODES, "ANTHROPIC_TOOLS", "ANTHROPIC_REASONING_TOOLS", "ANTHROPIC_JSON"])
def test_instructor(root, script, report, mode):
    instructor = pytest.importorskip("instructor", reason="make test-clients installs it")
    name = getattr(instructor.Mode, mode, None)
    if name is None:
        pytest.skip(f"this instructor has no mode {mode}")
    ask = {"model": "scripted", "messages": [{"role": "user", "content": ASK}], "max_retries": 1}
    if mode.startswith("ANTHROPIC"):
        from anthropic import Anthropic

        client = instructor.from_anthropic(Anthropic(base_url=root, api_key="none", max_retries=0), mode=name)
        ask["max_tokens"] = 1000
    else:
        from openai import OpenAI

        client = instructor.from_openai(OpenAI(base_url=f"{root}/v1", api_key="none", max_retries=0), mode=name)
    if mode == "PARALLEL_TOOLS":
        from collections.abc import Iterable

        script.say(call("Report", REPORT) + "\n" + call("Report", REPORT.replace("Rome", "Oslo")))
        found = client.chat.completions.create(response_model=Iterable[report], **ask)
        assert [one.city for one in found] == ["Rome", "Oslo"]
        return
    text = f"```json\n{REPORT}\n```" if mode == "MD_JSON" else REPORT
    script.say(call("Report", REPORT) if "TOOLS" in mode or mode == "FUNCTIONS" else text)
    found = client.chat.completions.create(response_model=report, **ask)  # a class of its own
    assert found.model_dump() == {"city": "Rome", "degrees": 21}


def test_langchain_ollama(root, script, report):
    package = pytest.importorskip("langchain_ollama", reason="make test-clients installs it")
    check_langchain(package.ChatOllama(base_url=root, model="scripted", temperature=0), script, report)


def test_langchain_anthropic(root, script, report):
    package = pytest.importorskip("langchain_anthropic", reason="make test-clients installs it")
    model = package.ChatAnthropic(base_url=root, api_key="none", model="scripted", max_tokens=1000, max_retries=0)
    check_langchain(model, script, report)


def check_langchain(model, script, report):
    """Runs a tool loop, whole and streamed, and requests a typed answer."""
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    bound = model.bind_tools([tool(weather)])
    for streamed in (False, True):
        script.say(f"<think>Look it up.</think>{CALL}", SUNNY)
        messages = [HumanMessage(ASK)]
        for _ in range(2):
            if streamed:
                answer = None
                for piece in bound.stream(messages):
                    answer = piece if answer is None else answer + piece
            else:
                answer = bound.invoke(messages)
            messages.append(answer)
            for one in answer.tool_calls:
                messages.append(ToolMessage(weather(**one["args"]), tool_call_id=one["id"]))
        assert answer.text.strip() == SUNNY and ran(script)
        script.check()
    method = {"method": "json_schema"} if type(model).__name__ == "ChatOllama" else {}
    script.say(REPORT if method else call("Report", REPORT))
    assert model.with_structured_output(report, **method).invoke(ASK) == report(city="Rome", degrees=21)


def test_llama_index(root, script):
    package = pytest.importorskip("llama_index.llms.openai_like", reason="make test-clients installs it")
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.tools import FunctionTool

    model = package.OpenAILike(
        api_base=f"{root}/v1", api_key="none", model="scripted", is_chat_model=True, is_function_calling_model=True,
        max_retries=0,
    )  # fmt: skip
    tool = FunctionTool.from_defaults(weather)
    script.say(CALL)
    answer = model.chat([ChatMessage(role="user", content=ASK)], tools=[tool.metadata.to_openai_tool()])
    [one] = answer.message.additional_kwargs["tool_calls"]
    assert (one.function.name, json.loads(one.function.arguments)) == ("weather", {"city": "Rome"})
    script.check()
    script.say(SUNNY)
    pieces = [piece.delta for piece in model.stream_chat([ChatMessage(role="user", content=ASK)])]
    assert "".join(piece for piece in pieces if piece) == SUNNY


def test_haystack(root, script):
    pytest.importorskip("haystack", reason="make test-clients installs it")
    from haystack.components.agents import Agent
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    for streamed in (False, True):
        script.say(CALL, SUNNY)
        generator = OpenAIChatGenerator(
            api_base_url=f"{root}/v1", api_key=Secret.from_token("none"), model="scripted", max_retries=0,
            streaming_callback=(lambda piece: None) if streamed else None,
        )  # fmt: skip
        agent = Agent(chat_generator=generator, tools=[create_tool_from_function(weather)])
        found = agent.run(messages=[ChatMessage.from_user(ASK)])
        assert found["messages"][-1].text == SUNNY and ran(script)
        script.check()


@pytest.mark.parametrize("kind", ["ToolCallingAgent", "CodeAgent"])
def test_smolagents(root, script, kind):
    package = pytest.importorskip("smolagents", reason="make test-clients installs it")
    model = package.OpenAIServerModel(model_id="scripted", api_base=f"{root}/v1", api_key="none")
    agent = getattr(package, kind)(tools=[package.tool(weather)], model=model, max_steps=3)
    if kind == "ToolCallingAgent":
        script.say(CALL, call("final_answer", json.dumps({"answer": SUNNY})))
    else:
        code = "Thought: look it up.\n<code>\n{}\n</code>"
        script.say(code.format('print(weather(city="Rome"))'), code.format(f'final_answer("{SUNNY}")'))
    assert agent.run(ASK) == SUNNY and ran(script)


def test_dspy(root, script, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # reads no table from the network
    dspy = pytest.importorskip("dspy", reason="make test-clients installs it")
    model = dspy.LM("openai/scripted", api_base=f"{root}/v1", api_key="none", cache=False, num_retries=0)
    with dspy.context(lm=model):
        script.say(f"[[ ## answer ## ]]\n{SUNNY}\n[[ ## completed ## ]]")
        assert dspy.Predict("question -> answer")(question=ASK).answer == SUNNY
        script.check()
        step = "\n".join(f"[[ ## next_{name} ## ]]\n{{}}" for name in ("thought", "tool_name", "tool_args"))
        script.say(
            step.format("Look it up.", "weather", '{"city": "Rome"}'), step.format("I know.", "finish", "{}"),
            f"[[ ## reasoning ## ]]\nI looked.\n[[ ## answer ## ]]\n{SUNNY}\n[[ ## completed ## ]]",
        )  # fmt: skip
        assert dspy.ReAct("question -> answer", tools=[weather])(question=ASK).answer == SUNNY and ran(script)
