"""What those who run the server look at."""

import pytest

from rwkv_gpu.errors import BadFile
from rwkv_gpu.server.catalogue import ServedModel
from tests.server.serving import MODEL, serving


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
def test_health_says_that_the_model_is_ready(server, path):
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
