"""The token of this machine, which our Ray clusters and Prefect servers ask for: without one, whoever reaches a port
could run code.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from lora_rl.home import home


def token_environment() -> dict[str, str]:
    """Variables that make Ray ask for this machine's token and show it; empty where the user has decided.

    Set explicitly: a driver that is given an address does not look for a token by itself.
    """
    if "RAY_AUTH_MODE" in os.environ:
        return {}
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file())}


def token_file() -> Path:
    """The file that holds the token; written now if there is none."""
    path = home() / "ray-token"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with NamedTemporaryFile("w", dir=path.parent) as file:  # only the owner may read it
            file.write(secrets.token_hex(32))
            file.flush()
            with suppress(FileExistsError):
                os.link(file.name, path)
    return path
