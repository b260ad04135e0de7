"""The page as the server sends it: one file, with a strict content policy. `make test-page` opens it in a browser."""

import base64
import hashlib
import json
import re

import pytest

from rwkv_gpu import page
from rwkv_gpu.page import HERE, SCRIPTS

SOURCES = {
    path.name: path.read_text(encoding="utf-8") for path in HERE.iterdir() if path.suffix in (".js", ".html", ".css")
}
PARSED = "(inner|outer)HTML", "insertAdjacentHTML", r"document\.write", "srcdoc"
RUN = r"\beval\(", "new Function", "javascript:"
FORBIDDEN = "|".join((*PARSED, *RUN))


def test_the_page_is_small_and_loads_nothing_else(server):
    status, headers, content = server.request("GET", "/")
    text = content.decode()
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert len(content) <= 200 * 1024
    assert re.findall(r"(?:src|href)=\"?([^\"> ]+)", text.split("<script>")[0]) == [
        "favicon.svg", "manifest.webmanifest", "#text",
    ]  # fmt: skip
    assert server.request("GET", "/favicon.svg")[0] == 200


def test_the_page_can_be_installed(server):
    _, headers, content = server.request("GET", "/manifest.webmanifest")
    manifest = json.loads(content)
    assert headers["content-type"] == "application/manifest+json"
    assert (manifest["start_url"], manifest["display"]) == ("./", "standalone")  # below any path
    for icon in manifest["icons"]:
        status, headers, image = server.request("GET", f"/{icon['src']}")
        assert (status, headers["content-type"]) == (200, icon["type"])
        if icon["type"] == "image/png":
            size = "x".join(str(int.from_bytes(image[at : at + 4], "big")) for at in (16, 20))
            assert image.startswith(b"\x89PNG") and size == icon["sizes"]
    status, headers, _ = server.request("GET", "/sw.js")
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "text/javascript", "no-cache")


def test_the_policy_allows_this_script_and_style_alone(server):
    _, headers, content = server.request("GET", "/")
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:" and policy["media-src"] == "data:"
    for tag in ("script", "style"):
        [inline] = re.findall(rf"<{tag}>(.*?)</{tag}>", content.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"


@pytest.mark.parametrize("name", SOURCES)
def test_nothing_is_parsed_as_html_or_run_as_a_script(name):
    assert not re.search(FORBIDDEN, SOURCES[name])
    if name == "index.html":
        assert not re.search(r"\son\w+=|style=\"", SOURCES[name])


def test_a_proxy_may_put_the_page_below_any_path():
    for name, source in SOURCES.items():
        assert all(match.startswith("local(") for match in re.findall(r"fetch\((.{6})", source)), name


def test_every_script_is_in_the_page():
    assert {f"{name}.js" for name in SCRIPTS} == {name for name in SOURCES if name.endswith(".js")}
    assert all(SOURCES[f"{name}.js"] in page.assemble().html for name in SCRIPTS)


def test_the_page_is_open_where_the_api_has_a_key():
    from tests.server.serving import serving

    with serving(api_keys=("secret",)) as served:
        assert served.request("GET", "/")[0] == 200
        assert served.request("GET", "/v1/models")[0] == 401


def test_a_stream_reports_progress_of_the_prompt(server):
    body = {"messages": [{"role": "user", "content": "word " * 150}], "max_tokens": 2, "return_progress": True}
    found = server.stream("/v1/chat/completions", body)
    told = [one["prompt_progress"] for one in found if isinstance(one, dict) and "prompt_progress" in one]
    assert told[0]["processed"] == told[0]["cache"]
    assert len(told) > 1 and told[-1]["processed"] == told[-1]["total"] > 100
    assert [one["processed"] for one in told] == sorted(one["processed"] for one in told)
    plain = server.stream("/v1/chat/completions", {**body, "return_progress": False})
    assert not any("prompt_progress" in one for one in plain if isinstance(one, dict))
