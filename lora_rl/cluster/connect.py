"""Joining a Ray cluster, or starting one of our own on this machine."""

import logging
import os
import signal
import socket
import threading

import ray

from lora_rl.cluster.workstation import OBJECT_STORE_BYTES
from lora_rl.errors import ClusterError

NAMESPACE = "lora-rl"
LISTENER_DEADLINE_S = 10.0


def connect(address: str | None = None) -> str:
    """Joins the cluster at `address` or $RAY_ADDRESS; without either starts one that ends with this process.

    Returns its address. Raises ClusterError when there is no cluster at that address.
    """
    if ray.is_initialized():
        return ray.get_runtime_context().gcs_address
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS")
    if address and address not in ("auto", "local"):
        _require_listener(address)
    handler = signal.getsignal(signal.SIGTERM)
    logging.getLogger("ray").setLevel(logging.ERROR)
    common = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **common)
        else:
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
                **common,
            )
    except ConnectionError as error:
        raise ClusterError(
            f"RAY_ADDRESS: no Ray cluster answers at {address} ({error}); start one with `lora-rl up`, or unset it"
        ) from error
    finally:
        # ray.init takes SIGTERM for itself; Prefect needs it to cancel a run
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    return ray.get_runtime_context().gcs_address


def _require_listener(address: str) -> None:
    """Ray itself gives up on an address where nothing answers only after more than a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=LISTENER_DEADLINE_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterError(
            f"RAY_ADDRESS: no Ray cluster answers at {address} ({error}); start one with `lora-rl up`, or unset it"
        ) from error


def disconnect() -> None:
    """Leaves the cluster; ends it only where `connect` started it."""
    ray.shutdown()
