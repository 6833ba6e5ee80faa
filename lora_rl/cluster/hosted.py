"""What may be called remotely: one host a role.

A host imports its library only in its own process, so a driver stays light.
"""

import os
import sys
from typing import Any

import ray
import ray.util
from ray.actor import ActorHandle

from lora_rl.cluster.calls import call
from lora_rl.cluster.logs import LogDraining
from lora_rl.cluster.processes import held_port


def see_only(gpus: str | None) -> None:
    """Shows this process, and those that it starts, the GPUs of its seat. Must come before CUDA is used."""
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus


class EngineHost(LogDraining):
    """Hosts `lora_rl.engine.actor.EngineActor`."""

    def __init__(self, *, gpus: str | None = None, **arguments: Any) -> None:
        super().__init__()
        see_only(gpus)
        from lora_rl.engine.actor import EngineActor

        self._engine = EngineActor(**arguments)

    async def start(self) -> dict[str, Any]:
        return await self._engine.start()

    async def generate(self, **arguments: Any) -> Any:
        return await self._engine.generate(**arguments)

    async def stage(self, **arguments: Any) -> str:
        return await self._engine.stage(**arguments)

    async def publish(self, **arguments: Any) -> Any:
        return await self._engine.publish(**arguments)

    async def sleep(self) -> str:
        return await self._engine.sleep()

    async def wake(self) -> str:
        return await self._engine.wake()

    async def serving(self) -> dict[str, str]:
        return await self._engine.serving()

    async def drain_logs(self, after: int) -> list[tuple[int, int, str]]:
        return self._ring.after(after)


class RolloutHost(LogDraining):
    """Hosts `lora_rl.rollout.actor.RolloutActor`; engines are named by their handles."""

    def __init__(self, *, python_path: str, **arguments: Any) -> None:
        super().__init__()
        # a standing cluster was not started beside the graders
        sys.path[:0] = [path for path in python_path.split(os.pathsep) if path and path not in sys.path]
        from lora_rl.rollout.actor import RolloutActor

        self._rollout = RolloutActor(**arguments)

    async def start(self) -> dict[str, Any]:
        return await self._rollout.start()

    async def rollout(
        self, *, session: str, engines: list[ActorHandle], engine_deadline_s: float, **arguments: Any
    ) -> Any:
        self._rollout.renew(session)
        clients = [RemoteEngine(handle, engine_deadline_s) for handle in engines]
        return await self._rollout.rollout(engines=clients, **arguments)

    async def grade(self, *, session: str, **arguments: Any) -> Any:
        self._rollout.renew(session)
        return await self._rollout.grade(**arguments)

    async def drain_logs(self, after: int) -> list[tuple[int, int, str]]:
        return self._ring.after(after)


class RemoteEngine:
    """An engine as the rollout actor sees it: each call has the rollout's deadline."""

    def __init__(self, handle: ActorHandle, deadline_s: float) -> None:
        self._handle = handle
        self._deadline_s = deadline_s

    async def generate(self, **arguments: Any) -> Any:
        return await call(self._handle.generate, deadline_s=self._deadline_s, **arguments)


class TrainerHost(LogDraining):
    """Hosts one rank of `lora_rl.trainer.actor.TrainerActor`."""

    def __init__(self, *, gpus: str | None = None, **arguments: Any) -> None:
        super().__init__()
        see_only(gpus)
        from lora_rl.trainer.actor import TrainerActor

        self._trainer = TrainerActor(**arguments)

    def node(self) -> str:
        """Ray's number of this rank's node."""
        return ray.get_runtime_context().get_node_id()

    def rendezvous(self, *, one_node: bool) -> str:
        """An address where all ranks can meet: loopback where they are on one node, which no one else can reach."""
        address = "127.0.0.1" if one_node else ray.util.get_node_ip_address()
        # until the trainer listens there, after imports that take seconds, no other process may be given the port
        self._meeting = held_port(address)
        return f"tcp://{address}:{self._meeting.getsockname()[1]}"

    def start(self, **arguments: Any) -> dict[str, Any]:
        return self._trainer.start(**arguments)

    def new_state(self, **arguments: Any) -> Any:
        return self._trainer.new_state(**arguments)

    def offload(self) -> str:
        return self._trainer.offload()

    def onload(self) -> str:
        return self._trainer.onload()

    def train_step(self, **arguments: Any) -> Any:
        return self._trainer.train_step(**arguments)

    def hand_over(self, **arguments: Any) -> Any:
        return self._trainer.hand_over(**arguments)

    def export_adapter(self, **arguments: Any) -> Any:
        return self._trainer.export_adapter(**arguments)

    def drain_logs(self, after: int) -> list[tuple[int, int, str]]:
        return self._ring.after(after)
