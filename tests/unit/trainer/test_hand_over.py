import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from lora_rl.store import handover
from lora_rl.store.handover import CONFIG, WEIGHTS
from lora_rl.trainer.hand_over import HandOver


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path)
    return tmp_path


def exporter() -> HandOver:
    return HandOver(torch.device("cpu"))


def tensors(seed: int = 0, width: int = 7) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(3, width, generator=generator) for name in ("q.lora_A.weight", "k.lora_A.weight")}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_file_is_what_safetensors_writes_of_the_cast_tensors(dtype: torch.dtype) -> None:
    directory = exporter().write("a", 1, tensors(), b"{}", dtype)
    found = safetensors.torch.load_file(directory / WEIGHTS)
    assert found.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert torch.equal(found[name], tensor.to(dtype))
    assert (directory / CONFIG).read_bytes() == b"{}"


def test_a_shared_tensor_is_written_under_each_of_its_names() -> None:
    shared = torch.ones(2, 4)
    directory = exporter().write("a", 1, {"q": shared, "k": shared.T}, b"{}", torch.float32)
    found = safetensors.torch.load_file(directory / WEIGHTS)
    assert torch.equal(found["q"], shared)
    assert torch.equal(found["k"], shared.T)


def test_memory_is_used_again_but_not_for_another_size() -> None:
    ours = exporter()

    def weights_of(version: int, **shape: int) -> Path:
        drawn = tensors(version, **shape)
        path = ours.write("a", version, drawn, b"{}", torch.bfloat16) / WEIGHTS
        found = safetensors.torch.load_file(path)
        assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in drawn.items())
        return path

    with weights_of(1).open("rb") as first:
        assert not weights_of(2).samefile(first.name)
        assert os.path.sameopenfile(first.fileno(), weights_of(3).open("rb").fileno())
        of_the_third = first.read()
        weights_of(5, width=5)
        first.seek(0)
        assert first.read() == of_the_third
