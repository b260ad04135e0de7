"""Sets the authentication of these tests' clusters, which Ray reads only once, when it is first imported."""

import os
import secrets

os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(24), "RAY_USAGE_STATS_ENABLED": "0"}
