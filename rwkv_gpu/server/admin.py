"""Who may manage models: programs and pages of this server that send an admin key."""

from collections.abc import Mapping

from .call import Call
from .config import ServerConfig
from .errors import ApiError
from .keys import opens


def same_origin(headers: Mapping[bytes, bytes]) -> bool:
    """True for pages of this server, and for programs other than browsers."""
    origin = headers.get(b"origin", b"").decode("latin-1")
    return not origin or origin.partition("://")[2] == headers.get(b"host", b"").decode("latin-1")


def check_admin(config: ServerConfig, call: Call) -> None:
    """Refuses a request to manage models. --cors grants nothing here."""
    if not config.admin_keys:
        why = "models are managed by whoever runs the server; `rwkv-gpu serve --admin-key-file` allows it over HTTP"
        raise ApiError(403, why, code="management_off")
    if not same_origin(call.headers):
        raise ApiError(403, "pages of other origins may not manage models", code="origin_not_allowed")
    if not opens(call.owner, config.admin_keys):
        why = "managing models needs an admin key; send it as 'Authorization: Bearer KEY'"
        raise ApiError(401, why, code="invalid_api_key")
