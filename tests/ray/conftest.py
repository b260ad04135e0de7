"""How clusters of these tests authenticate. Ray reads it once in a process, when it is imported first."""

import os
import secrets

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24), "RAY_USAGE_STATS_ENABLED": "0"}
