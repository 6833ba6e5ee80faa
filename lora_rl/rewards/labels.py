"""The reference answer that a grader compares with."""

from lora_rl.data.types import Sample
from lora_rl.errors import DataError


def label_of(sample: Sample) -> str:
    """The sample's label. Raises DataError where there is none."""
    if sample.label is None:
        raise DataError(f"sample {sample.id}: has no label to compare with; set data.label_key or use another grader")
    return sample.label
