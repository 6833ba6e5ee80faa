"""Where the ranks of a trainer meet: they listen on the address they are given and no other, as torch's own would."""

import os
import socket
from datetime import timedelta
from urllib.parse import urlsplit

import torch.distributed as dist

DEADLINE = timedelta(minutes=30)
"""For a rank to wait in the store for another, as long as torch's own for gloo."""


def join(backend: str, rendezvous: str, rank: int, world_size: int) -> None:
    """Joins the `world_size` ranks at `rendezvous`, a torch init method (`tcp://host:port`, `file:///path`)."""
    url = urlsplit(rendezvous)
    if url.scheme != "tcp":
        dist.init_process_group(backend, init_method=rendezvous, rank=rank, world_size=world_size)
        return
    if url.hostname == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    listener = socket.create_server((url.hostname, url.port)).detach() if rank == 0 else None
    store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
        str(url.hostname),
        int(url.port or 0),
        world_size,
        is_master=rank == 0,
        timeout=DEADLINE,
        master_listen_fd=listener,
    )
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
