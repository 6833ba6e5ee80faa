"""Batch-whitened advantages: REINFORCE++ and REINFORCE++-baseline (arXiv:2501.03262)."""

from torch import Tensor

from lora_rl.algorithms.whitening import centre, whiten


def reinforce_plus_plus_advantages(rewards_B: Tensor, prompt_index_B: Tensor, *, group_baseline: bool) -> Tensor:
    """Advantages [B] of all samples of an optimizer step, over all ranks: rewards, whitened over the batch.

    `prompt_index_B` names each sample's prompt. With `group_baseline` the mean reward of the sample's prompt is taken
    off first; groups may differ in size and order. Equal values to whiten give zeros.
    """
    if not group_baseline:
        return whiten(rewards_B)
    baselined_B = rewards_B.clone()
    for prompt in prompt_index_B.unique():
        group_B = prompt_index_B == prompt
        baselined_B[group_B] = centre(rewards_B[group_B])
    return whiten(baselined_B)
