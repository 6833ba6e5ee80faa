"""Groups that teach nothing: DAPO's dynamic sampling (arXiv:2503.14476, section 3.2)."""

import statistics
from collections.abc import Sequence


def uniform_group(rewards: Sequence[float], min_std: float) -> bool:
    """Whether the sample deviation (n - 1) of a prompt's rewards is at most `min_std`; one reward alone is uniform."""
    return len(rewards) < 2 or statistics.stdev(rewards) <= min_std
