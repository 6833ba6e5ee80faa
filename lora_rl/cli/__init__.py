"""The command line `lora-rl`: a module per group of commands; app.py puts them together."""

from lora_rl.cli.app import app, main

__all__ = ["app", "main"]
