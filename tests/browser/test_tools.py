"""Tools of MCP servers in the page: each call is shown, and runs only if the user agrees."""

import json
import sys

import pytest
from playwright.sync_api import expect

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

from rwkv_gpu.mcp.client import ToolServers
from rwkv_gpu.mcp.config import ServerConfig
from tests.browser.conftest import LAST, chunk, events
from tests.cli.tmux import ROOT
from tests.process import PATIENCE

SECRET = "a-secret-of-the-server"


@pytest.fixture
def tooled(server, make_page):
    """A page of a server with the tools of a tiny MCP server."""
    config = ServerConfig("tiny", sys.executable, ("-m", "tests.mcp.tiny_server"), {"KEY": SECRET}, str(ROOT))
    server.service.tools = ToolServers([config], connect=PATIENCE, call=PATIENCE)
    try:
        page = make_page()
        expect(page.locator("#status")).to_have_text("Ready.")
        yield page
    finally:
        server.service.tools.close()
        server.service.tools = None


def scripted(page, *rounds):
    """Makes the model answer with these calls or texts in turn. Returns the bodies of its requests."""
    bodies = []

    def answer(route):
        bodies.append(route.request.post_data_json)
        told = rounds[len(bodies) - 1]
        if isinstance(told, str):
            body = events(chunk(content=told))
        else:
            calls = [
                {"index": n, "id": f"call_{n}", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for n, (name, arguments) in enumerate(told)
            ]
            body = events(chunk(tool_calls=calls), finish="tool_calls")
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", answer)
    return bodies


def send(page, text):
    page.fill("#text", text)
    page.keyboard.press("Enter")


def test_calls_are_shown_and_run_only_if_the_user_agrees(tooled):
    page = tooled
    bodies = scripted(page, [("add", {"a": 2, "b": 3}), ("repeat", {"text": "ab"})], "It is 5.")
    called = []
    page.on("request", lambda request: called.append(request.post_data_json) if "/mcp/call" in request.url else None)
    send(page, "2 + 3?")
    expect(page.locator("details.tool")).to_have_count(2)
    expect(page.locator("details.tool >> nth=0")).to_contain_text('"a": 2')
    expect(page.locator("details.tool >> nth=0")).to_contain_text("add (tiny)")
    assert called == [] and len(bodies) == 1, "nothing runs before the user agrees"
    page.click("details.tool >> nth=0 >> text=Run >> nth=-1")
    expect(page.locator("pre.result >> nth=0")).to_have_text("5")
    page.reload()
    page.unroute("**/v1/chat/completions")
    bodies += scripted(page, "It is 5.")
    page.click("details.tool >> nth=1 >> text=Do not run")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_have_text("It is 5.")
    expect(page.locator("#send")).to_have_text("Send")
    assert called == [{"name": "add", "arguments": '{"a": 2, "b": 3}'}]
    assert {one["function"]["name"] for one in bodies[0]["tools"]} >= {"add", "fail"}
    assert SECRET not in page.content() and SECRET not in json.dumps(bodies)


def test_results_follow_their_calls_in_the_messages(tooled):
    page = tooled
    bodies = scripted(page, [("add", {"a": 2, "b": 3}), ("fail", {})], "done", "again")
    send(page, "go")
    page.click("details.tool >> nth=1 >> text=Do not run")
    page.click("details.tool >> nth=0 >> text=Run >> nth=-1")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_have_text("done")
    user, answer, first, second = bodies[1]["messages"]
    assert (user["role"], answer["role"]) == ("user", "assistant")
    assert [call["id"] for call in answer["tool_calls"]] == ["call_0", "call_1"]
    assert (first["tool_call_id"], first["content"]) == ("call_0", "5")
    assert second["tool_call_id"] == "call_1" and "declined" in second["content"]
    expect(page.locator("#send")).to_have_text("Send")
    send(page, "more")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_have_text("again")
    assert [one["role"] for one in bodies[2]["messages"]] == ["user", "assistant", "tool", "tool", "assistant", "user"]


def test_a_failing_tool_is_shown_and_tools_can_be_turned_off(tooled):
    page = tooled
    bodies = scripted(page, [("fail", {})], "sorry", "plain")
    send(page, "go")
    page.click("details.tool >> text=Run >> nth=-1")
    expect(page.locator("pre.result.failed")).to_contain_text("Error executing tool fail")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_have_text("sorry")
    expect(page.locator("#send")).to_have_text("Send")
    page.click("#settings-button")
    page.select_option("select[name=tools]", "off")
    page.click("dialog button.primary")
    send(page, "more")
    expect(page.locator(f"{LAST} >> .markdown >> nth=0")).to_have_text("plain")
    assert "tools" not in bodies[2]
