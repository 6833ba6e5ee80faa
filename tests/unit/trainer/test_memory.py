import pytest
import torch

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError
from lora_rl.trainer.memory import GIB, memory_named, refuse_too_large


def test_weights_that_find_no_room_are_refused_with_what_would_hold_them(tiny_qwen3):
    size = sum(file.stat().st_size for file in tiny_qwen3.glob("*.safetensors"))
    refuse_too_large(tiny_qwen3, torch.float32, TrainerConfig(), size)
    with pytest.raises(TrainerError, match=r"in 1 shares .* 3 shares would fit"):
        refuse_too_large(tiny_qwen3, torch.float32, TrainerConfig(), int(size / 2.5))


def test_each_rank_holds_its_share_and_half_precision_half(tiny_qwen3):
    size = sum(file.stat().st_size for file in tiny_qwen3.glob("*.safetensors"))
    refuse_too_large(tiny_qwen3, torch.float32, TrainerConfig(tensor_parallel=2), int(0.55 * size))
    refuse_too_large(tiny_qwen3, torch.bfloat16, TrainerConfig(), int(0.55 * size))
    with pytest.raises(TrainerError, match="2 shares would fit"):
        refuse_too_large(tiny_qwen3, torch.float32, TrainerConfig(), int(0.55 * size))


def test_a_damaged_file_is_left_to_the_load_to_name(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    refuse_too_large(tmp_path, torch.float32, TrainerConfig(), GIB)


@pytest.mark.parametrize(
    ("recompute", "mend"), [(False, "; set trainer.recompute: true, or lower it to 2048"), (True, "; lower it to 2048")]
)
def test_a_micro_batch_that_does_not_fit_names_its_size_and_what_to_change(recompute, mend):
    trainer = TrainerConfig(max_tokens_per_gpu=4096, recompute=recompute)
    error = pytest.raises(TrainerError, match=r"max_tokens_per_gpu: 4096 rows.*tried to allocate 2 GiB")
    with error as caught, memory_named(trainer):
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")
    assert str(caught.value).endswith(mend)
