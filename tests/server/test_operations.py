"""Tests of the pages and logs for operators."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.server.catalogue import ServedModel
from tests.process import PATIENCE
from tests.server.gate import gate, until
from tests.server.serving import MODEL, Served, serving

PAGE = Path(__file__).resolve().parents[2] / "docs" / "server.md"
KINDS = "prompt", "cached", "generated"


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_reports_that_the_model_is_ready(server, path):
    assert server.get(path) == {"status": "ok", "models": [{"id": "quiet", "state": "ready"}]}


def test_props_describe_the_model(server):
    props = server.get("/props")
    assert props["total_slots"] == 2
    assert props["model"]["architecture"] == "rwkv7"
    assert props["chat_template"] == server.llm.chat_format.template.source


def test_a_first_model_that_cannot_be_loaded_ends_the_server(tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(MODEL.read_bytes()[:1000])
    with pytest.raises(BadFile), serving(ServedModel("damaged", str(damaged))):
        pass


def test_there_is_no_page_that_was_not_shipped(server):
    assert server.request("GET", "/../pyproject.toml")[0] == 404


def value(text, name, **labels):
    """Returns a number of the metrics page."""
    wanted = "{" + ",".join(f'{key}="{one}"' for key, one in sorted(labels.items())) + "}" if labels else ""
    [line] = [line for line in text.splitlines() if line.startswith(f"{name}{wanted} ")]
    return float(line.rpartition(" ")[2])


def test_every_metric_of_the_documentation_is_there(server):
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    server.request("GET", "/nothing")
    table = PAGE.read_text(encoding="utf-8").partition("| metric |")[2].partition("\n\n")[0]
    names = re.findall(r"`(\w+)`", table)
    text = server.get("/metrics").decode()
    assert len(names) > 15 and all(f"\nrwkv_gpu_{name}" in text for name in names)


def test_metrics_count_finished_requests_and_tokens():
    with serving() as server:
        path, ask = "/v1/chat/completions", {"messages": [{"role": "user", "content": "The sea"}], "max_tokens": 5}
        ask["temperature"] = 0  # an answer that ends at once has no first token
        used = [server.post(path, ask)["usage"] for _ in range(3)]
        server.request("POST", path, {"messages": []})
        server.request("GET", "/nothing/at/all")
        text = server.get("/metrics").decode()
        assert value(text, "rwkv_gpu_requests_total", path=path, status="200") == 3
        assert value(text, "rwkv_gpu_requests_total", path="", status="404") == 1
        counted = {kind: value(text, "rwkv_gpu_tokens_total", model="quiet", kind=kind) for kind in KINDS}
        assert counted["generated"] == sum(one["completion_tokens"] for one in used)
        assert counted["prompt"] == sum(one["prompt_tokens"] for one in used)
        assert counted["cached"] == sum(one["prompt_tokens_details"]["cached_tokens"] for one in used) > 0
        for name in ("time_to_first_token", "queue", "request"):
            assert value(text, f"rwkv_gpu_{name}_seconds_count") == 3
        assert value(text, "rwkv_gpu_inter_token_latency_seconds_count") > 0
        assert value(text, "rwkv_gpu_errors_total", code="invalid_request_error") == 1
        assert value(text, "rwkv_gpu_model_loaded", model="quiet") == 1
        assert value(text, "rwkv_gpu_requests_waiting", model="quiet") == 0
        accepted = server.request("GET", "/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert accepted[1]["content-type"].startswith("application/openmetrics-text")


def requests(server: Served) -> list[dict[str, Any]]:
    """The waiting and running requests of a server, without its idle slots."""
    return [slot for slot in server.get("/slots") if slot["state"] != "idle"]


def test_slots_show_requests_without_their_text():
    with serving() as server:
        with gate(server) as held:
            threads = [
                threading.Thread(
                    target=server.post,
                    args=("/v1/completions", {"prompt": "confidential", "max_tokens": 9, "temperature": 0}),
                )
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            until(lambda: len(requests(server)) == 4)

            def is_half_way() -> bool:  # the number of prompts in a step depends on their arrival
                if {"generating", "queued"} <= {slot["state"] for slot in requests(server)}:
                    return True
                held.allow(1)
                return False

            until(is_half_way)
            slots = server.get("/slots")
            assert "confidential" not in json.dumps(slots)
            held.open = True
            for thread in threads:
                thread.join(PATIENCE)
        until(lambda: not requests(server))
        idle = server.get("/slots")
        assert len(idle) == server.get("/props")["total_slots"]
        assert all(slot["state"] == "idle" and not slot["is_processing"] for slot in idle)
        assert [slot["id"] for slot in idle] == [*range(len(idle))]
