"""docs/server.md describes the server's actual behaviour."""

import re
from pathlib import Path

import pytest

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.server import absent
from rwkv_gpu.server.app import FAMILIES
from tests.cli.help_pages import groups_of
from tests.server.field_tables import KINDS, tables

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "a"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 1}},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": 1}},
    "/api/embed": {"input": "a"},
    "/completion": {"prompt": "a", "n_predict": 1, "mirostat": 2},  # fields needed so that the target is read
}


def test_the_tables_of_fields_equal_those_of_the_source():
    """`python -m tests.server.field_tables` prints the tables."""
    assert tables() in PAGE


@pytest.mark.parametrize("path", BODIES)  # no tiny model has tokens for /infill
def test_fields_behave_as_the_tables_list_them(server, path):
    fields = KINDS[path]
    for name in fields.ignored:
        status, headers, _ = server.request("POST", path, {**BODIES[path], name: "a"})
        assert (status, headers["x-ignored-fields"]) == (200, name)
    for name in fields.refused:
        status, _, answer = server.request("POST", path, {**BODIES[path], name: "a"})
        said = answer["error"] if isinstance(answer["error"], str) else answer["error"]["message"]
        assert status == 400 and said.startswith(f"{name}: ")
    for name in fields.honoured:  # impossible values are refused, so the field is read
        found = {server.request("POST", path, {**BODIES[path], name: wrong})[0] for wrong in ({"a": 1}, -1e6, "a")}
        assert found & {400, 404}, name


def test_every_route_is_named(server):
    routes = {route.path for family in FAMILIES if family is not absent.routes for route in family(server.service)}
    named = {re.sub(r"{(\w+)}", r"{\1", path) for path in re.findall(r"`(?:GET|POST|DELETE) (/\S*)`", PAGE)}
    assert {re.sub(r"{(\w+)(:path)?}", r"{\1", path) for path in routes} <= named


def test_every_option_of_serve_is_in_the_reference():
    command = cli.get_command(None, "serve")
    reference = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^##+ (.*)\n((?:(?!##).*\n)*)", reference, re.MULTILINE))
    section = sections["rwkv-gpu serve"]
    tables = "".join(sections[f"{group} options"] for group in groups_of(section))
    for option in command.params:
        if option.opts[0].startswith("-") and "--help" not in option.opts:
            assert any(re.search(rf"{name}(?![\w-])", tables + section) for name in option.opts), option.opts
