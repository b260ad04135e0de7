"""The settings of the server. Data only; the command line fills them in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerConfig:
    """How the server behaves. The names are those of the options of `rwkv-gpu serve`."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()  # any of them opens; none asks for no key
    router_key: str = ""  # what the router of replicas proves itself with: it says who the client is
    allowed_hosts: tuple[str, ...] = ()  # names that a Host header may have, besides local ones; * allows any
    cors: tuple[str, ...] = ()  # origins whose pages may call; * allows any
    root_path: str = ""  # where a proxy mounts the server
    max_body: int = 10 << 20  # bytes of a request
    sequences: int = 8  # answers that a model generates at a time
    max_queue: int = 256  # requests that wait for a model
    max_queue_tokens: int = 1 << 20  # prompt tokens of those that wait
    timeout: float = 600.0  # seconds that a request may take
    drain: float = 30.0  # seconds that running requests have to end after SIGTERM
    version: str = ""  # of this package, for clients that ask
    log_prompts: bool = False  # whether log lines have the text of prompts
