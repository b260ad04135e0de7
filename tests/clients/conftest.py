"""A server for third-party clients. `make test-clients` installs them; without them these tests are skipped."""

from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="the extra `server` is not installed")

from tests.clients.scripted import Script, scripted_server
from tests.server.serving import Served, serving


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.fixture(scope="session")
def url(server: Served) -> str:
    """Returns the name of a client's setting for the base URL."""
    return f"http://localhost:{server.port}/v1"


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Script]]:
    """Starts a server whose model follows a script. Yields its URL and the script."""
    with scripted_server(tmp_path_factory.mktemp("scripted")) as (served, script):
        yield f"http://localhost:{served.port}", script


@pytest.fixture
def root(scripted: tuple[str, Script]) -> str:
    """Returns the URL of the server with the scripted model."""
    return scripted[0]


@pytest.fixture
def script(scripted: tuple[str, Script]) -> Iterator[Script]:
    """Returns the script. The test fails if a part of it is unused at the end."""
    found = scripted[1]
    found.say()
    yield found
    found.check()
