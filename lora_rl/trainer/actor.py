"""One rank of the trainer: what may be called remotely, without Ray.

Ranks are called alike and reply alike; rank 0 alone writes to the store. Nothing is held that the store lacks: a call
names the state it starts from, and memory that differs is restored first.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.data.samples_io import read_samples
from lora_rl.errors import ConfigError, TrainerError
from lora_rl.store import AdapterRef, ArtifactStore, BlobRef, canonical_json, open_store
from lora_rl.store.handover import announce, keep_only
from lora_rl.store.refs import ADAPTER
from lora_rl.trainer.batches import Trainable, trainable
from lora_rl.trainer.hand_over import HandOver
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.megatron_compat import VERSIONS, init_distributed, leave_distributed
from lora_rl.trainer.memory import memory_named, peak_memory_gib
from lora_rl.trainer.model import FrozenModel, build_model
from lora_rl.trainer.offload import Offload
from lora_rl.trainer.peft_io import export_peft, peft_config, peft_tensors
from lora_rl.trainer.probe import make_probe
from lora_rl.trainer.ranks import first_rank_alone, peers_named, together
from lora_rl.trainer.slot_bank import SlotBank
from lora_rl.trainer.slots import SlotTable
from lora_rl.trainer.states import StateKeeper
from lora_rl.trainer.types import AdapterBatch, ExportReply, OptimReply, StepReply

logger = logging.getLogger("lora_rl.trainer")


class TrainerActor:
    def __init__(
        self, *, model_path: str | Path, dtype: str, trainer: TrainerConfig, rank: int = 0, world_size: int = 1
    ):
        """Allocates nothing; `start` does."""
        self._model_path = Path(model_path)
        self._dtype = dtype
        self._config = trainer
        self._rank = rank
        self._world_size = world_size
        self._model: FrozenModel | None = None

    @peers_named
    def start(self, rendezvous: str | None = None) -> dict[str, Any]:
        """Join the other ranks at `rendezvous` (null for one rank alone) and load the model; later calls only reply.

        Returns versions, parameter counts and memory. Raises TrainerError for a model or topology that cannot be.
        """
        if self._model is None:
            torch.set_num_threads(self._config.threads)
            device = init_distributed(self._rank, self._world_size, self._config, rendezvous)
            model = build_model(self._model_path, dtype=self._dtype, device=device, trainer=self._config)
            bank = SlotBank(model)
            self._bank = bank
            self._table = SlotTable(model, bank, self._config.slots)
            self._keeper = StateKeeper(model, bank, self._table, self._config.max_rank)
            self._learner = Learner(model, bank, max_tokens=self._config.max_tokens_per_gpu)
            self._offload = Offload(_on_device(chain(model.gpt.parameters(), model.gpt.buffers())))
            self._hand_over = HandOver(device)
            self._model = model
        return {
            "versions": VERSIONS,
            "device": str(self._model.device),
            "base": self._model.fingerprint,
            "parameters": sum(parameter.numel() for parameter in self._model.gpt.parameters()),
            "memory/peak_gib": peak_memory_gib(),
        }

    @peers_named
    def new_state(self, *, store: StoreConfig, adapter: AdapterConfig, seed: int) -> BlobRef:
        """The state that training starts from: drawn from `seed`, or the PEFT adapter at `adapter.init`."""
        self._started()
        state = together(lambda: self._keeper.create(adapter, seed))
        return self._keeper.put(open_store(store), state)

    @peers_named
    def load_state(self, *, store: StoreConfig, adapter: AdapterConfig, state: BlobRef) -> str:
        """Put a state in a slot; `loaded`, or `already_loaded` where it was there."""
        self._started()
        _, read = self._keeper.restore(open_store(store), adapter, state)
        return "loaded" if read else "already_loaded"

    @peers_named
    def forward_backward(
        self, *, store: StoreConfig, batches: Sequence[AdapterBatch], seed: int
    ) -> dict[str, dict[str, float]]:
        """Add each batch's gradient to its adapter's slot; metrics by adapter name.

        Each adapter is trained as if alone, but for dropout masks, which follow the packing. Raises TrainerError where
        the trainer's log-probabilities are further from the engine's than `algorithm.max_mismatch`, and where a
        micro-batch does not fit; then no gradient is kept.
        """
        self._started()
        names = [batch.adapter.name for batch in batches]
        if len(set(names)) < len(names) or len(names) > self._config.slots:
            raise ConfigError(
                f"batches: {', '.join(names)} need a slot each, trainer.slots is {self._config.slots}; send fewer"
            )
        try:
            with memory_named(self._config):
                return self._forward_backward(open_store(store), batches, seed)
        except Exception:
            # Gradients may be half there: the slots no longer are the states they were.
            for name in names:
                self._table.evict(name)
            raise

    @peers_named
    def optim_step(self, *, adapter: AdapterConfig) -> OptimReply:
        """Step the adapter by the gradient it has gathered.

        Raises TrainerError after `trainer.max_skipped_steps` gradients in a row that were not finite.
        """
        self._started()
        tenant = self._table.find(adapter.name)
        if tenant is None or not tenant.pending_samples:
            raise TrainerError(f"adapter {adapter.name}: has no gradient; call forward_backward first")
        result = tenant.optimizer.step(tenant.pending_samples, finite_loss=tenant.finite_loss)
        if result.stepped:
            self._bank.refresh(tenant.slot)
        tenant.pending_samples, tenant.finite_loss, tenant.digest = 0, True, None
        skipped = tenant.optimizer.clock.skipped_in_a_row
        if skipped >= self._config.max_skipped_steps:
            raise TrainerError(
                f"adapter {adapter.name}: loss or gradient of {skipped} steps in a row was not finite; "
                "lower adapter.optimizer.lr, or raise trainer.max_skipped_steps"
            )
        return OptimReply(
            stepped=result.stepped,
            metrics=_finite(
                {
                    "policy/grad_norm": result.grad_norm,
                    "train/lr": result.lr,
                    "train/steps": float(tenant.optimizer.clock.steps),
                    "train/skipped_in_a_row": float(skipped),
                }
            ),
        )

    @peers_named
    def save_state(self, *, store: StoreConfig, adapter: AdapterConfig) -> BlobRef:
        """The blob of what the adapter's slot holds."""
        self._started()
        tenant = self._table.find(adapter.name)
        if tenant is None:
            raise TrainerError(f"adapter {adapter.name}: is in no slot; call load_state first")
        return self._keeper.save(open_store(store), tenant)

    @peers_named
    def train_step(
        self,
        *,
        store: StoreConfig,
        adapter: AdapterConfig,
        start: BlobRef,
        samples: BlobRef,
        algorithm: AlgorithmConfig,
        sampling: SamplingConfig,
        seed: int,
    ) -> StepReply:
        """One optimizer step from the state `start`. On a CPU the same start, samples and seed give the same bytes."""
        self._started()
        began = time.perf_counter()
        batch = AdapterBatch(adapter=adapter, start=start, samples=samples, algorithm=algorithm, sampling=sampling)
        tenant = self._table.find(adapter.name)
        if tenant is not None and tenant.pending_samples:
            self._table.evict(adapter.name)
        metrics = self.forward_backward(store=store, batches=[batch], seed=seed)[adapter.name]
        optim = self.optim_step(adapter=adapter)
        state = self.save_state(store=store, adapter=adapter)
        seconds = time.perf_counter() - began
        metrics |= optim.metrics | {
            "train/stepped": float(optim.stepped),
            "train/tokens_per_s": metrics["train/tokens"] / seconds,
            "time/train_s": seconds,
            "memory/peak_gib": peak_memory_gib(),
        }
        return StepReply(state=state, stepped=optim.stepped, metrics=metrics)

    @peers_named
    def hand_over(
        self, *, store: StoreConfig, adapter: AdapterConfig, state: BlobRef, version: int, base_model_name: str
    ) -> str | None:
        """The state as a PEFT directory in the base's type, in memory that engines of the first rank's host share.

        Writes nothing to the store, so an engine may load it meanwhile; `export_adapter` makes it known as a version,
        with its digest. None, with a warning, where there is no such memory: engines read the store.
        """
        model = self._started()
        tenant, _ = self._keeper.restore(open_store(store), adapter, state)
        weights = self._table.weights(tenant)

        def write() -> str | None:
            config = peft_config(tenant.lora, adapter, num_layers=model.num_layers, base_model_name=base_model_name)
            tensors = peft_tensors(tenant.lora, adapter, weights)
            try:
                keep_only(self._table.names)
                return str(self._hand_over.write(adapter.name, version, tensors, config, model.dtype))
            except OSError as error:
                logger.warning("%s@%d: not handed over in memory: %s", adapter.name, version, error)
                return None

        return first_rank_alone(write)

    @peers_named
    def export_adapter(
        self,
        *,
        store: StoreConfig,
        adapter: AdapterConfig,
        state: BlobRef,
        version: int,
        base_model_name: str,
        handed_over: str | None = None,
    ) -> ExportReply:
        """The state as a PEFT directory's two files, and what the trainer says of a fixed prompt under it.

        `handed_over` is what `hand_over` returned for the same state and version. Its digest is taken here, while
        engines load it: it counts when they are to serve it.
        """
        model = self._started()
        artifacts = open_store(store)
        began = time.perf_counter()
        tenant, _ = self._keeper.restore(artifacts, adapter, state)
        weights = self._table.weights(tenant)
        probe = canonical_json(asdict(make_probe(model, self._bank, tenant.slot)))

        def write() -> AdapterRef:
            files = export_peft(
                tenant.lora, adapter, weights, num_layers=model.num_layers, base_model_name=base_model_name
            )
            refs = [artifacts.put_blob(ADAPTER, data) for data in (*files, probe)]
            ref = AdapterRef(name=adapter.name, version=version, weights=refs[0], config=refs[1], probe=refs[2])
            if handed_over is not None:
                try:
                    announce(Path(handed_over), ref, probe)
                except OSError as error:
                    logger.warning("%s: not announced in memory, engines read the store: %s", ref.label, error)
            return ref

        ref = first_rank_alone(write)
        return ExportReply(adapter=ref, metrics={"time/export_s": time.perf_counter() - began})

    def offload(self) -> str:
        """Move all memory of the device to the host, until `onload`. `offloaded`, `already_offloaded` or `not_started`.

        Nothing is lost: the same call goes on with the same bits. On a CPU nothing moves.
        """
        if self._model is None:
            return "not_started"
        if self._offload.away:
            return "already_offloaded"
        freed = self._offload.offload(_on_device(self._table.tensors()))
        logger.info("offloaded %.2f GiB", freed / 2**30)
        return "offloaded"

    def onload(self) -> str:
        """Move it back. `onloaded` or `already_here`. An error leaves the actor of no use: start another."""
        if self._model is None or not self._offload.away:
            return "already_here"
        self._offload.onload()
        logger.info("back on %s", self._model.device)
        return "onloaded"

    def shutdown(self) -> None:
        """Leave the other ranks and let go of the model."""
        if self._model is not None:
            self._model = None
            del self._bank, self._table, self._keeper, self._learner, self._offload, self._hand_over
            leave_distributed()

    def _started(self) -> FrozenModel:
        if self._model is None:
            raise TrainerError("trainer: not started; call start first")
        if self._offload.away:
            raise TrainerError("trainer: its memory is on the host; call onload first")
        return self._model

    def _forward_backward(
        self, store: ArtifactStore, batches: Sequence[AdapterBatch], seed: int
    ) -> dict[str, dict[str, float]]:
        model = self._started()
        read: dict[str, Trainable] = together(
            lambda: {
                batch.adapter.name: trainable(
                    read_samples(store.get_blob(batch.samples)), vocab_size=model.vocab_size, source=batch.samples.key
                )
                for batch in batches
            }
        )
        jobs = {}
        for batch in batches:
            tenant, _ = self._keeper.restore(store, batch.adapter, batch.start)
            dropout_seed = f"{seed}/{batch.adapter.name}/{tenant.optimizer.clock.samples}"
            jobs[batch.adapter.name] = Job(
                slot=tenant.slot,
                samples=read[batch.adapter.name].samples,
                algorithm=batch.algorithm,
                sampling=batch.sampling,
                dropout_seed=dropout_seed if batch.adapter.dropout else None,
            )
            tenant.pending_samples += len(read[batch.adapter.name].samples)
        by_slot = self._learner.forward_backward(list(jobs.values()))
        replies = {}
        for batch in batches:
            name = batch.adapter.name
            metrics = by_slot[jobs[name].slot]
            self._refuse_mismatch(batch, metrics["mismatch/logp_abs/mean"])
            tenant = self._table.find(name)
            if tenant is not None and not isfinite(metrics["loss/total"]):
                tenant.finite_loss = False
            replies[name] = _finite(metrics) | read[name].metrics
        return replies

    def _refuse_mismatch(self, batch: AdapterBatch, mismatch: float) -> None:
        limit = batch.algorithm.max_mismatch
        if limit is not None and mismatch > limit:
            raise TrainerError(
                f"adapter {batch.adapter.name}: mean |logp trainer - logp engine| is {mismatch:.4g}, above "
                f"algorithm.max_mismatch {limit:g}; check that both run the same base model and adapter version"
            )


def _on_device(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    """Those that a CPU has no memory of."""
    return (tensor for tensor in tensors if tensor.device.type != "cpu")


def _finite(metrics: dict[str, float]) -> dict[str, float]:
    """Without what JSON cannot carry."""
    return {name: value for name, value in metrics.items() if isfinite(value)}
