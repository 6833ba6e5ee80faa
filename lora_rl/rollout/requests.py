"""Prompts to requests: a seed for each, and a share for each engine."""

import hashlib
import itertools
from collections.abc import Sequence

from lora_rl.data.types import Prompt
from lora_rl.engine.types import GenerateRequest


def sample_seed(seed: int, sample_id: str) -> int:
    """Seed of one sample in [0, 2^63): the same whenever and wherever the run of `seed` draws it."""
    # Generators on the CPU use the low 32 bits alone, so these have to differ too; a digest sees to it.
    return int.from_bytes(hashlib.sha256(f"{seed}/{sample_id}".encode()).digest()[:8]) >> 1


def requests_of(prompt: Prompt, *, num_samples: int, seed: int) -> list[GenerateRequest]:
    """The G requests of one prompt, with ids `<prompt id>/<index in the group>`."""
    ids = [f"{prompt.id}/{index}" for index in range(num_samples)]
    return [GenerateRequest(id=id, prompt_tokens=prompt.tokens, seed=sample_seed(seed, id)) for id in ids]


def share_between(prompts: Sequence[Prompt], num_engines: int) -> list[list[Prompt]]:
    """Contiguous shares of nearly equal size, one an engine; some are empty where engines outnumber prompts.

    Prompts are never split: the samples of one share its KV cache.
    """
    bounds = [len(prompts) * index // num_engines for index in range(num_engines + 1)]
    return [list(prompts[start:end]) for start, end in itertools.pairwise(bounds)]
