"""Centring and whitening of rewards."""

from torch import Tensor


def centre(values_N: Tensor) -> Tensor:
    """Values [N] minus their mean. Equal values give exact zeros, which `x - x.mean()` alone does not."""
    shifted_N = values_N - values_N[:1]
    return shifted_N - shifted_N.mean()


def whiten(values_N: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Values [N] minus their mean, over the sample deviation (N - 1) plus `eps`. Equal values and N = 1 give zeros."""
    centred_N = centre(values_N)
    variance = centred_N.square().sum() / max(len(centred_N) - 1, 1)
    return centred_N / (variance.sqrt() + eps)
