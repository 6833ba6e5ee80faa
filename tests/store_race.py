"""Processes that race on the same keys of a store."""

import multiprocessing
from typing import Any

from lora_rl.config import StoreConfig
from lora_rl.store import open_store


def race(uri: str, keys: list[str], contenders: int) -> list[list[dict[str, Any]]]:
    """For each contender the document that `create` gave it for each key; its own was {"by": its number}."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(contenders), context.Queue()
    processes = [
        context.Process(target=_contend, args=(uri, keys, number, barrier, results)) for number in range(contenders)
    ]
    for process in processes:
        process.start()
    seen = [results.get(timeout=200) for _ in processes]
    for process in processes:
        process.join(60)
    return seen


def _contend(uri: str, keys: list[str], number: int, barrier, results) -> None:
    store = open_store(StoreConfig(uri=uri))
    store.read(keys[0])  # the connection is open before the start
    seen = []
    for key in keys:
        barrier.wait(200)
        seen.append(store.create(key, {"by": number}))
    results.put(seen)
