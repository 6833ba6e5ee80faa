"""The rollout engine: serves adapter versions, never the base model alone."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lora_rl.config import EngineConfig, SamplingConfig, StoreConfig
from lora_rl.config.run import ENGINE_MAX_RANKS
from lora_rl.engine.adapter_files import adapter_files
from lora_rl.engine.environment import set_environment
from lora_rl.engine.probe import ProbeResult
from lora_rl.engine.types import Completion, GenerateRequest, Probe, PublishOutcome, PublishReply
from lora_rl.engine.versions import Version, VersionRegistry
from lora_rl.errors import EngineDied, EngineError
from lora_rl.process_log import LogSince, where_logged
from lora_rl.store.handover import digest_of
from lora_rl.store.refs import AdapterRef

if TYPE_CHECKING:
    from lora_rl.engine.serving import AdapterServer

logger = logging.getLogger("lora_rl.engine")


@dataclass(frozen=True, kw_only=True)
class Staged:
    """An adapter that is loaded and does not serve."""

    digest: str
    """Of the directory that it was loaded from."""
    lora_id: int
    seconds: dict[str, float]


class EngineActor:
    """One vLLM engine. Its adapters are a cache of the store: after a restart it serves nothing until a publish.

    Calls may overlap. Batches run one at a time, in the order of the calls; a publish does not wait for them.
    """

    def __init__(
        self,
        *,
        model_path: str,
        dtype: str,
        engine: EngineConfig,
        max_rank: int,
        slots: int,
        seed: int = 0,
        sleeps: bool = False,
    ) -> None:
        """`max_rank` is the largest rank to serve, `slots` the number of adapters trained at a time.

        With `sleeps` the engine's GPUs are another's while it sleeps.
        """
        self._sleeps = sleeps
        self._asleep = False
        self._model_path = model_path
        self._dtype = dtype
        self._config = engine
        self._max_rank = next((rank for rank in ENGINE_MAX_RANKS if rank >= max_rank), max_rank)
        self._seed = seed
        self._slots = slots
        self._versions = self._no_versions()
        self._staged: Staged | None = None
        self._server: AdapterServer | None = None
        self._starting = asyncio.Lock()
        self._publishing = asyncio.Lock()
        self._unloading = asyncio.Lock()
        self._unloaded = asyncio.Event()
        self._batches: dict[str, tuple[Version, asyncio.Task[list[Completion]]]] = {}
        # vLLM's processes die with the thread that starts them: it has to last as long as the actor.
        self._vllm_parent = ThreadPoolExecutor(1, thread_name_prefix="vllm-parent")

    async def start(self) -> dict[str, Any]:
        """Starts vLLM where it does not run: at first, and after its processes have died. Returns what runs.

        After a start nothing is served until a publish. Raises EngineError with the cause that vLLM's processes logged.
        """
        async with self._starting:
            started = time.perf_counter()
            if self._server is not None and self._server.dead:
                await self._end_vllm()
            if self._server is None:
                self._server = await self._started_vllm()
                logger.info("serving %s, up to %d adapter versions", self._model_path, self._versions.capacity)
        return {
            "model": self._model_path,
            "max_rank": self._max_rank,
            "capacity": self._versions.capacity,
            "seconds": time.perf_counter() - started,
        }

    async def generate(
        self, *, version: str, requests: list[GenerateRequest], sampling: SamplingConfig, batch_id: str
    ) -> list[Completion]:
        """One answer to each of `requests`, in their order, all by `version` (`<adapter>@<version>`).

        Raises EngineError where that version is not loaded, where a request cannot fit, or when `batch_id` is aborted.
        """
        server = self._started()
        if batch_id in self._batches:
            raise EngineError(f"batch {batch_id}: already running here; abort it, or give the new one another id")
        lease = self._versions.acquire(version)
        task = asyncio.create_task(server.answer(lease, requests, sampling))
        self._batches[batch_id] = lease, task
        try:
            return await task
        except asyncio.CancelledError:
            if batch_id in self._batches:
                raise
            raise EngineError(f"batch {batch_id}: aborted") from None
        finally:
            self._batches.pop(batch_id, None)
            self._versions.release(lease)
            await self._unload_unneeded(server)

    async def stage(self, *, label: str, directory: str) -> str:
        """Loads what the trainer hands over as `label`, before it is exported; it serves only when it is published.

        Its digest, taken meanwhile, must then be the exporter's. One adapter at a time is staged. Returns `staged`, or
        `elsewhere` where the trainer is on another host. Raises EngineError.
        """
        async with self._publishing:
            server, path = self._started(), Path(directory)
            if not path.is_dir():
                return "elsewhere"
            await self._drop_staged(server)
            await self._wait_for_room(server, label.rpartition("@")[0])
            lora_id, started = self._versions.new_id(), time.perf_counter()
            digesting = asyncio.create_task(asyncio.to_thread(digest_of, path))
            try:
                load_s = await server.load(label, path, lora_id)
                digest = await digesting
            except BaseException:
                digesting.cancel()
                await server.discard(lora_id)
                raise
            seconds = {"transfer": time.perf_counter() - started - load_s, "load": load_s}
            self._staged = Staged(digest=digest, lora_id=lora_id, seconds=seconds)
            return "staged"

    async def publish(self, *, store: StoreConfig, adapter: AdapterRef) -> PublishReply:
        """Loads `adapter`, proves by its probe that it acts as in the trainer, and serves it as `<name>@<version>`.

        Running requests go on. If it fails, what was served before still is. Raises StoreError, DataError, EngineError.
        """
        async with self._publishing:
            server = self._started()
            present = self._versions.find(adapter.label)
            if present is not None and present.same_files(adapter):
                self._versions.touch(present)
                return self._reply(PublishOutcome.ALREADY_LOADED, adapter, {}, ProbeResult(error=0.0, effect=0.0))
            lora_id, probe, seconds = await self._load(server, store, adapter)
            result, proof = await server.prove(adapter, probe, lora_id)
            self._versions.add(adapter, probe, lora_id)
            await self._unload_unneeded(server)
            logger.info("%s loaded, probe error %.2g, effect %.2g", adapter.label, result.error, result.effect)
            return self._reply(PublishOutcome.LOADED, adapter, seconds | proof, result)

    async def sleep(self) -> str:
        """Gives the GPUs' memory back until `wake`, with what is loaded kept; ends batches that still run.

        Returns `slept`, `already_asleep` or `not_running`. An error leaves the actor of no use: start another.
        """
        async with self._publishing:
            if self._server is None or self._server.dead:
                return "not_running"
            if self._asleep:
                return "already_asleep"
            self._asleep = True  # before anything is awaited: no batch may begin meanwhile
            try:
                for batch_id in list(self._batches):
                    await self.abort(batch_id)
                await self._drop_staged(self._server)
                await self._server.sleep()
            except BaseException:
                self._asleep = False
                raise
            return "slept"

    async def wake(self) -> str:
        """Takes the GPUs' memory again, and proves each version by its probe. Returns `woke` or `already_awake`.

        Raises EngineDied where vLLM does not wake as it slept: it is ended, `start` starts it anew, serving nothing.
        """
        async with self._publishing:
            if self._server is None or not self._asleep:
                return "already_awake"
            try:
                await self._server.wake()
                for version in self._versions.serving():
                    await self._server.prove(version.ref, version.probe, version.lora_id)
            except Exception as error:
                await self._end_vllm()
                raise EngineDied(f"engine: vLLM did not wake as it slept ({error}); start it and publish") from error
            self._asleep = False
            return "woke"

    async def serving(self) -> dict[str, str]:
        """Digest of each version that takes requests, by `<name>@<version>`, oldest publish first."""
        return {version.label: version.ref.digest for version in self._versions.serving()}

    async def abort(self, batch_id: str) -> bool:
        """Ends a batch, running or waiting: its `generate` raises. False where there is none of that id."""
        if batch_id not in self._batches:
            return False
        _, task = self._batches.pop(batch_id)
        task.cancel()
        await asyncio.wait([task])
        return True

    async def retire(self, adapter: str) -> None:
        """Ends the batches of an adapter and unloads all its versions: its slot is free for another."""
        server = self._started()
        self._versions.retire(adapter)
        for batch_id in [id for id, (version, _) in self._batches.items() if version.ref.name == adapter]:
            await self.abort(batch_id)
        await self._unload_unneeded(server)

    async def shutdown(self) -> None:
        """Ends vLLM's processes."""
        await self._end_vllm()
        self._vllm_parent.shutdown(wait=False)

    async def _end_vllm(self) -> None:
        if self._server is not None:
            await asyncio.to_thread(self._server.shutdown)
        self._server, self._versions, self._staged, self._asleep = None, self._no_versions(), None, False

    def _no_versions(self) -> VersionRegistry:
        return VersionRegistry(slots=self._slots, resident_versions=self._config.resident_versions)

    async def _started_vllm(self) -> "AdapterServer":
        log = LogSince()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._vllm_parent, self._start_vllm)
        except EngineError:
            raise
        except Exception as error:  # of any kind, and often only that one of its processes failed
            what = f"engine: vLLM did not start for {self._model_path}: {error}"
            raise EngineError("\n".join(filter(None, (what, log.causes(), f"see {where_logged()}")))) from error

    def _start_vllm(self) -> "AdapterServer":
        set_environment(self._config)
        # Imports vllm, which reads what was set above.
        from lora_rl.engine.serving import AdapterServer
        from lora_rl.engine.vllm_client import VllmClient, start_vllm

        llm = start_vllm(
            model_path=self._model_path,
            dtype=self._dtype,
            engine=self._config,
            max_rank=self._max_rank,
            capacity=self._versions.capacity,
            seed=self._seed,
            sleeps=self._sleeps,
        )
        return AdapterServer(
            VllmClient(llm), max_model_len=self._config.max_model_len, probe_tolerance=self._config.probe_tolerance
        )

    def _started(self) -> "AdapterServer":
        if self._server is None:
            raise EngineError("engine: not started; call start() first")
        if self._asleep:
            raise EngineError("engine: asleep; wake it first")
        return self._server

    async def _load(
        self, server: "AdapterServer", store: StoreConfig, adapter: AdapterRef
    ) -> tuple[int, Probe, dict[str, float]]:
        """vLLM's number of the loaded adapter, its probe, and seconds by stage. What is staged is not loaded again."""
        started = time.perf_counter()
        with ExitStack() as files_end:
            known = self._staged.digest if self._staged else None
            opening = adapter_files(store, adapter, max_rank=self._max_rank, known=known)
            files = await asyncio.to_thread(files_end.enter_context, opening)
            if self._staged is not None and self._staged.digest == files.handover:
                staged, self._staged = self._staged, None
                return staged.lora_id, files.probe, staged.seconds
            seconds = {"transfer": time.perf_counter() - started}
            await self._drop_staged(server)
            await self._wait_for_room(server, adapter.name)
            lora_id = self._versions.new_id()
            seconds["load"] = await server.load(adapter.label, files.directory, lora_id)
            return lora_id, files.probe, seconds

    async def _drop_staged(self, server: "AdapterServer") -> None:
        if self._staged is not None:
            staged, self._staged = self._staged, None
            await server.discard(staged.lora_id)

    async def _wait_for_room(self, server: "AdapterServer", adapter: str) -> None:
        while not self._versions.has_room:
            self._unloaded.clear()
            self._versions.retire_surplus(adapter, incoming=1)
            await self._unload_unneeded(server)
            if not self._versions.has_room:
                await self._unloaded.wait()

    async def _unload_unneeded(self, server: "AdapterServer") -> None:
        async with self._unloading:  # two callers must not unload the same one
            versions = self._versions  # of this server; another has its own
            for version in versions.unneeded():
                await server.unload(version)
                versions.remove(version)
                self._unloaded.set()

    def _reply(
        self, outcome: PublishOutcome, adapter: AdapterRef, seconds: dict[str, float], result: ProbeResult
    ) -> PublishReply:
        return PublishReply(
            outcome=outcome,
            version=adapter.label,
            digest=adapter.digest,
            seconds=seconds,
            probe_error=result.error,
            probe_effect=result.effect,
            resident=[version.label for version in self._versions.serving()],
        )
