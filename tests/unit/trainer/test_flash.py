from types import SimpleNamespace

import pytest
import torch

from lora_rl.trainer import flash


@pytest.mark.parametrize(("size", "version"), [(16, 2), (32, 4), (64, 4), (80, 2), (96, 2), (128, 4), (256, 2)])
def test_flash_4_gets_the_head_sizes_that_it_was_tried_with(monkeypatch: pytest.MonkeyPatch, size: int, version: int):
    # Both need a GPU: who is asked is all that can be seen without one.
    asked = SimpleNamespace(version=None)

    def kernel(query, key, value, **options):
        asked.version = 4
        return query, None

    def torch_kernel(query, key, value, ends, most, scale):
        asked.version = 2
        return query

    monkeypatch.setattr(flash, "_flash_4", lambda: kernel)
    monkeypatch.setattr(flash, "_flash_2", torch_kernel)
    rows_FHE = torch.zeros(3, 2, size)
    ends = torch.tensor([0, 3], dtype=torch.int32)
    output_FHE = flash.causal_varlen_attention(rows_FHE, rows_FHE, rows_FHE, ends=(ends, ends), most=(3, 3), scale=1.0)
    assert output_FHE is rows_FHE
    assert asked.version == version
