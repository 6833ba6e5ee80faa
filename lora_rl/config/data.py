"""Where prompts come from."""

from typing import Annotated, Any, Literal

from pydantic import Field

from lora_rl.config.base import Section
from lora_rl.config.uri import Uri


class TableData(Section):
    """Rows of a table with named columns, wherever it is."""

    input_key: str = "prompt"
    """Column with the prompt: a text, or a list of chat messages."""

    label_key: str | None = "answer"
    """Column with the reference answer that the reward compares with; null where the reward needs none."""

    metadata_key: str | None = None
    """Column with a JSON object handed to the reward; null for none."""

    system_prompt: str | None = None
    """System message put first; messages that begin with one of their own keep it."""

    shuffle: bool = True
    """Shuffle once an epoch, by the run's seed."""

    digest: str | None = None
    """Of the rows, which may then lie anywhere. A run records that of the rows it began with, and goes on with no
    others; null for whatever rows are found when it begins."""


class FileData(TableData):
    """Rows of a JSONL or Parquet file."""

    type: Literal["file"] = "file"
    uri: Uri = Field(min_length=1)
    """Path or fsspec URI of a `.jsonl` or `.parquet` file."""


class HubData(TableData):
    """A Hugging Face dataset, by hub name or local path."""

    type: Literal["hf"] = "hf"
    path: Uri = Field(min_length=1)
    """First argument of `datasets.load_dataset`, or a folder written by `save_to_disk`."""

    name: str | None = None
    """Configuration of the dataset."""

    revision: str | None = None
    """Commit, tag or branch of the data set on the hub; null for its main branch."""

    split: str = "train"
    """Split to read."""


class ReasoningGymData(Section):
    """Procedural tasks of the reasoning-gym package; the n-th prompt is a function of seed and n, endlessly."""

    type: Literal["reasoning_gym"] = "reasoning_gym"
    task: str = Field(min_length=1)
    """Name of the task family, such as `chain_sum`."""

    params: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the task family, such as `min_terms`."""

    size: int = Field(default=100_000, gt=0)
    """Number of distinct tasks; an epoch."""

    system_prompt: str | None = None
    """System message put before the question."""

    digest: str | None = None
    """Of the first tasks. A run records that of those it began with, and goes on with no others; null
    for whatever tasks the installed package makes when it begins."""


DataConfig = Annotated[FileData | HubData | ReasoningGymData, Field(discriminator="type")]


class SamplingConfig(Section):
    """How many answers an iteration draws, and how.

    Samples per optimizer step = rollout_batch_size * n_samples_per_prompt.
    """

    rollout_batch_size: int = Field(default=16, gt=0)
    """Prompts P per iteration."""

    n_samples_per_prompt: int = Field(default=8, gt=0)
    """Samples G per prompt."""

    max_prompt_tokens: int = Field(default=512, gt=0)
    """Longer prompts are left out and counted."""

    max_response_tokens: int = Field(default=256, gt=0)
    """An answer is cut here (finish reason `length`)."""

    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature; the trainer's log-probabilities use it too."""

    stop: tuple[str, ...] = ()
    """Texts, or special tokens by themselves (`<|im_end|>`), that end an answer, beside the end-of-sequence token."""
