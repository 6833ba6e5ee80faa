"""Groups without processes."""

import torch

from lora_rl.trainer.ranks import Groups


class OneRank:
    """A group of this rank alone."""

    @staticmethod
    def rank() -> int:
        return 0

    @staticmethod
    def size() -> int:
        return 1


ONE_RANK = Groups(
    device=torch.device("cpu"),
    **dict.fromkeys(("world", "tp", "dp", "ep", "edp", "pp", "pp_back"), OneRank()),
)
