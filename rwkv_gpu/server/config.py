"""The settings of the server. Data only; the command line fills them in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerConfig:
    """How the server behaves. The names are those of the options of `rwkv-gpu serve`."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # any of them is accepted; empty: no key is required
    share_prefixes: bool = False  # whether clients with different keys share stored prefixes
    shared_prompts: tuple[str, ...] = ()  # system prompts that all clients share in any case
    admin_keys: tuple[str, ...] = ()  # each may manage models; without keys, models cannot be managed
    router_key: str = ""  # authenticates the router of replicas, which reports the client's address
    allowed_hosts: tuple[str, ...] = ()  # names that a Host header may have, in addition to local ones; * allows any
    cors: tuple[str, ...] = ()  # origins whose pages may send requests; * allows any, localhost those of this machine
    allow_media_urls: tuple[str, ...] = ()  # hosts from which images are fetched
    root_path: str = ""  # path at which a proxy mounts the server
    max_body: int = 10 << 20  # bytes of a request
    sequences: int = 8  # simultaneous answers of a model
    max_queue: int = 256  # requests that wait for a model
    max_queue_tokens: int = 1 << 20  # prompt tokens of waiting requests
    timeout: float = 600.0  # seconds that a request may take
    drain: float = 30.0  # seconds that running requests may take to end after SIGTERM
    slot_save_path: str | None = None  # directory of saved slots; None: saving is refused
    max_disk: int = 100 << 30  # bytes of that directory
    version: str = ""  # version of this package, reported to clients
    log_prompts: bool = False  # whether log lines contain the text of prompts
