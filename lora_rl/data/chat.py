"""From a prompt's text or messages to the tokens that the model reads."""

from dataclasses import dataclass
from pathlib import Path

from jinja2.exceptions import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lora_rl.data.rows import Message
from lora_rl.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class RenderedPrompt:
    """A prompt after the chat template, up to where the answer begins."""

    text: str
    tokens: list[int]


class ChatRenderer:
    """The chat template and tokenizer of one model."""

    def __init__(self, model_path: str | Path) -> None:
        """Raises ConfigError where the model's tokenizer has no chat template."""
        self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(model_path))
        if not self._tokenizer.chat_template:
            raise ConfigError(
                f"model.name: the tokenizer of {model_path} has no chat template; "
                "use an instruction-tuned model or put a chat_template.jinja beside the tokenizer"
            )

    def render(self, prompt: str | list[Message], system_prompt: str | None) -> RenderedPrompt:
        """The prompt as one user message or as the messages given, after `system_prompt` unless they begin with one.

        Raises DataError where the template refuses the messages.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if system_prompt is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": system_prompt}, *messages]
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise DataError(f"the chat template refuses {messages!r}: {error}; mend the roles") from error
        # The template wrote the special tokens that the model needs; a second set would be a prompt it never saw.
        tokens = self._tokenizer(str(text), add_special_tokens=False)["input_ids"]
        return RenderedPrompt(text=str(text), tokens=list(tokens))
