"""Who lives in which slot. Slots are a cache of train states: the store has all of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from lora_rl.config import AdapterConfig
from lora_rl.errors import TrainerError
from lora_rl.trainer.adapter import Lora, frozen_tensors, lora_of
from lora_rl.trainer.gradients import SlotParameter
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.pipeline import on_first_rank
from lora_rl.trainer.slot_bank import SlotBank
from lora_rl.trainer.slot_optimizer import SlotOptimizer
from lora_rl.trainer.state_io import MOMENTS, TrainState
from lora_rl.trainer.transfer import copy_to_host, wait_for_copies


@dataclass(kw_only=True)
class Tenant:
    """An adapter in a slot."""

    slot: int
    adapter: AdapterConfig
    lora: Lora
    seed: int
    optimizer: SlotOptimizer
    digest: str | None
    """Of the state that the slot holds; null once it has moved on."""
    pending_samples: int = 0
    """Samples whose gradient waits for the optimizer step."""
    finite_loss: bool = True
    """Whether the loss behind that gradient is finite."""


class SlotTable:
    """Adapters by name in at most `num_slots` slots; the one used least recently makes room."""

    def __init__(self, model: FrozenModel, bank: SlotBank, num_slots: int):
        self._model = model
        self._bank = bank
        self._free = list(range(num_slots))
        self._tenants: dict[str, Tenant] = {}
        """Least recently used first."""

    @property
    def names(self) -> list[str]:
        """Adapters in the slots."""
        return list(self._tenants)

    def find(self, name: str) -> Tenant | None:
        """The adapter's slot, now the one used last."""
        tenant = self._tenants.pop(name, None)
        if tenant is not None:
            self._tenants[name] = tenant
        return tenant

    def admit(self, adapter: AdapterConfig, state: TrainState, digest: str) -> Tenant:
        """Put a state in the lowest free slot, or in the place of the adapter's own earlier state.

        Raises TrainerError where that would drop a gradient that waits for its step.
        """
        self._make_room(adapter.name)
        slot = min(self._free)
        try:
            return self._settle(slot, adapter, state, digest)
        except BaseException:
            self._bank.clear(slot)
            raise

    def _make_room(self, name: str) -> None:
        own = self._tenants.get(name)
        if own is not None and own.pending_samples:
            raise TrainerError(f"adapter {name}: its gradient is of another start state; call optim_step first")
        self.evict(name)
        if self._free:
            return
        idle = [other for other, tenant in self._tenants.items() if not tenant.pending_samples]
        if not idle:
            raise TrainerError(
                f"adapter {name}: finds no slot, as all {len(self._tenants)} hold gradients; call optim_step for one "
                "first, or raise trainer.slots"
            )
        self.evict(idle[0])

    def _settle(self, slot: int, adapter: AdapterConfig, state: TrainState, digest: str) -> Tenant:
        lora = lora_of(adapter, self._model.num_layers, sparse=self._model.sparse)
        parameters = self._bank.fill(slot, lora, state.weights)
        moments = {
            moment: {
                p.name: self._bank.share(state.moments[moment][p.name], p.split_dim, of_experts=p.of_experts)
                for p in parameters
            }
            for moment in MOMENTS
        }
        optimizer = SlotOptimizer(
            parameters,
            adapter.optimizer,
            state.clock,
            moments,
            self._model.groups,
            frozen=frozen_tensors(adapter, lora),
        )
        self._free.remove(slot)
        self._tenants[adapter.name] = Tenant(
            slot=slot, adapter=adapter, lora=lora, seed=state.seed, optimizer=optimizer, digest=digest
        )
        return self._tenants[adapter.name]

    def evict(self, name: str) -> None:
        """Leave nothing of the adapter, if it is here."""
        tenant = self._tenants.pop(name, None)
        if tenant is not None:
            self._bank.clear(tenant.slot)
            self._free.append(tenant.slot)

    def weights(self, tenant: Tenant) -> dict[str, Tensor]:
        """The tenant's whole weights on rank 0, nothing on other ranks; the next step may change them.

        Those of this stage lie where the model is. All ranks must call it.
        """
        return self._whole(tenant, lambda p: p.value, keep=lambda weight: weight)

    def tensors(self) -> Iterator[Tensor]:
        """All memory of the slots on the device."""
        yield from self._bank.tensors()
        for tenant in self._tenants.values():
            yield from tenant.optimizer.tensors()

    def snapshot(self, tenant: Tenant) -> TrainState:
        """The tenant's state on rank 0, one without tensors on other ranks. All ranks must call it."""
        optimizer, keep = tenant.optimizer, copy_to_host
        state = TrainState(
            lora=tenant.lora,
            clock=optimizer.clock,
            seed=tenant.seed,
            base=self._model.fingerprint,
            weights=self._whole(tenant, lambda p: p.value, keep=keep),
            moments={moment: self._whole(tenant, partial(optimizer.moment, moment), keep=keep) for moment in MOMENTS},
        )
        wait_for_copies(self._model.device)
        return state

    def _whole(
        self, tenant: Tenant, part: Callable[[SlotParameter], Tensor], *, keep: Callable[[Tensor], Tensor]
    ) -> dict[str, Tensor]:
        parameters = tenant.optimizer.parameters
        return on_first_rank(
            ((p.name, self._bank.gathered(part(p), p.split_dim, of_experts=p.of_experts)) for p in parameters),
            [p.name for p in parameters],
            self._bank.shapes(tenant.lora),
            self._model.groups,
            keep,
        )
