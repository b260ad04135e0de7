"""A server for programs that we did not write. `make test-clients` installs them; without them these tests skip."""

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `server` is not installed")

from tests.server.serving import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def url(server: Served) -> str:
    """The name of a client's setting for the base URL."""
    return f"http://localhost:{server.port}/v1"
