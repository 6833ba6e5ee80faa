"""Train states between the store and the slots."""

from dataclasses import replace

import torch

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError, TrainerError
from lora_rl.store import ArtifactStore, BlobRef
from lora_rl.store.refs import STATE
from lora_rl.trainer.adapter import Clock, Lora, lora_of
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.peft_io import import_peft
from lora_rl.trainer.ranks import first_rank_alone, together
from lora_rl.trainer.slot_bank import SlotBank
from lora_rl.trainer.slots import SlotTable, Tenant
from lora_rl.trainer.state_io import MOMENTS, TrainState, check_shapes, decode_state, encode_state


class StateKeeper:
    """Makes, restores and saves states. All ranks must call each method alike."""

    def __init__(self, model: FrozenModel, bank: SlotBank, table: SlotTable, max_rank: int):
        self._model = model
        self._bank = bank
        self._table = table
        self._max_rank = max_rank

    def create(self, adapter: AdapterConfig, seed: int) -> TrainState:
        """The state of an adapter that never stepped: drawn from `seed`, or read from `adapter.init`."""
        lora = self._lora(adapter)
        if adapter.init is None:
            weights = self._bank.fresh_weights(lora, seed)
        else:
            weights = import_peft(adapter.init, lora, adapter, self._bank.shapes(lora))
        return TrainState(
            lora=lora,
            clock=Clock(),
            seed=seed,
            base=self._model.fingerprint,
            weights=weights,
            moments={
                moment: {name: torch.zeros_like(weight) for name, weight in weights.items()} for moment in MOMENTS
            },
        )

    def restore(self, store: ArtifactStore, adapter: AdapterConfig, ref: BlobRef) -> tuple[Tenant, bool]:
        """The adapter's slot, holding the state `ref`, and whether it had to be read.

        Raises DataError for a damaged state, ConfigError for one of another adapter, TrainerError for another base.
        """
        tenant = self._table.find(adapter.name)
        if tenant is not None and tenant.digest == ref.sha256 and tenant.adapter == adapter:
            return tenant, False

        def read() -> TrainState:
            state = decode_state(store.get_blob(ref), ref.key)
            self._check(state, adapter, ref.key)
            return state

        return self._table.admit(adapter, together(read), ref.sha256), True

    def save(self, store: ArtifactStore, tenant: Tenant) -> BlobRef:
        """The blob of what the slot holds; the slot holds that state from here on."""
        ref = self.put(store, self._table.snapshot(tenant))
        tenant.digest = ref.sha256
        return ref

    def put(self, store: ArtifactStore, state: TrainState) -> BlobRef:
        """The blob of `state`, written by rank 0."""
        return first_rank_alone(lambda: store.put_blob(STATE, encode_state(state)))

    def _lora(self, adapter: AdapterConfig) -> Lora:
        if adapter.rank > self._max_rank:
            raise ConfigError(
                f"adapter.rank: {adapter.rank} exceeds trainer.max_rank {self._max_rank}; "
                "lower it or raise trainer.max_rank"
            )
        return lora_of(adapter, self._model.num_layers, sparse=self._model.sparse)

    def _check(self, state: TrainState, adapter: AdapterConfig, source: str) -> None:
        if state.base != self._model.fingerprint:
            raise TrainerError(
                f"{source}: was trained on base {state.base[:12]}, this trainer has {self._model.fingerprint[:12]}; "
                "use the model that the run began with"
            )
        asked, found = self._lora(adapter), state.lora
        # Dropout may change between steps; what the tensors mean may not.
        if replace(found, dropout=asked.dropout) != asked:
            raise ConfigError(
                f"{source}: holds {_text(found)}, the config asks for {_text(asked)}; "
                "give adapter.type, rank, alpha and target_modules the values that the run began with"
            )
        check_shapes(state.weights, self._bank.shapes(asked), source)


def _text(lora: Lora) -> str:
    return (
        f"rank {lora.rank}, scaling {lora.scaling:g}, {len(lora.modules)} projections "
        f"and {'shared' if lora.shared_a else 'separate'} A"
    )
