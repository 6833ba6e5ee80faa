"""What the trainer says of a fixed prompt, for the engine to check itself against."""

import torch
import torch.distributed as dist
from torch import Tensor

from lora_rl.engine.types import Probe
from lora_rl.trainer.attention import Ask, make_layout
from lora_rl.trainer.logprobs import head_logits
from lora_rl.trainer.lora_rows import Span
from lora_rl.trainer.model import FrozenModel
from lora_rl.trainer.packing import Rows
from lora_rl.trainer.pipeline import Stage
from lora_rl.trainer.slot_bank import SlotBank

PROMPT_LENGTH = 16
NUM_TOKENS = 16
"""Next tokens K, the likeliest with the adapter on."""


@torch.no_grad()
def make_probe(model: FrozenModel, bank: SlotBank, slot: int) -> Probe:
    """Log-probabilities at temperature 1 with the slot's adapter on and off. All ranks must call it."""
    # Spread over the vocabulary by a prime, so that the prompt depends on its size alone.
    prompt = [(7919 * place + 13) % model.vocab_size for place in range(PROMPT_LENGTH)]
    logp_V = _next_logp(model, bank, prompt, (Span(slot=slot, start=0, stop=len(prompt)),))
    logp_base_V = _next_logp(model, bank, prompt, ())
    likeliest = logp_V.sort(descending=True, stable=True).indices[:NUM_TOKENS]
    return Probe(
        prompt_tokens=prompt,
        token_ids=likeliest.tolist(),
        logp=logp_V[likeliest].tolist(),
        logp_base=logp_base_V[likeliest].tolist(),
    )


def _next_logp(model: FrozenModel, bank: SlotBank, prompt: list[int], spans: tuple[Span, ...]) -> Tensor:
    """Log-probabilities [V] of the token after `prompt`, on every rank."""
    places = list(range(len(prompt)))
    tokens_T, positions_T = (torch.tensor(values, device=model.device) for values in (prompt, places))
    layout = make_layout([Ask(queries=places, keys=places)], model.device, model.dtype)
    stage, groups = Stage(model), model.groups
    logp_V = torch.empty(model.vocab_size, device=model.device)
    for _ in stage.turns(1, backward=False):
        with bank.routed(spans):
            hidden_TD = stage.forward(Rows(tokens_T=tokens_T, positions_T=positions_T, layout=layout)).result
        if groups.is_last_stage:
            share_V = head_logits(hidden_TD[-1:], model.head_VD)[0].float()
            shares = [torch.empty_like(share_V) for _ in range(model.tp)]
            dist.all_gather(shares, share_V, group=model.tp_group)
            logp_V = torch.cat(shares).log_softmax(0)
    if groups.pp.size() > 1:
        dist.broadcast(logp_V, dist.get_global_rank(groups.pp, groups.pp.size() - 1), group=groups.pp)
    return logp_V.cpu()
