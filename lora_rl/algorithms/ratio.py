"""Importance ratio between two policies, kept inside float32."""

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""exp(20) = 4.9e8 is far beyond every clip, and its products stay finite in float32."""


def log_ratio(logp_T: Tensor, logp_old_T: Tensor) -> Tensor:
    """logp - logp_old [T], clamped to +-20 and without gradient beyond (-inf on one side included). NaN stays NaN."""
    return (logp_T - logp_old_T).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def sample_sums(values_T: Tensor, sample_T: Tensor) -> Tensor:
    """Sums [B] of the values of each sample's tokens; `sample_T` (int64, from 0) names the sample of each."""
    return values_T.new_zeros(len(sample_T.bincount())).index_add(0, sample_T, values_T)
