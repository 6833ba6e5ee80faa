"""From the name of a grader to its function, and from its params to checked arguments."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from lora_rl.data.types import Sample
from lora_rl.errors import ConfigError
from lora_rl.rewards.boxed import last_boxed

Grader = Callable[..., Any]
"""`(sample: Sample, **params) -> float`, or an async function of that form."""

BUILT_IN = {
    "dapo": "lora_rl.rewards.mathematics:dapo",
    "deepscaler": "lora_rl.rewards.mathematics:deepscaler",
    "exact": "lora_rl.rewards.text:exact",
    "f1": "lora_rl.rewards.text:f1",
    "format": "lora_rl.rewards.text:matches_format",
    "gpqa": "lora_rl.rewards.text:gpqa",
    "gsm8k": "lora_rl.rewards.numeric:gsm8k",
    "math": "lora_rl.rewards.mathematics:math",
    "number": "lora_rl.rewards.numeric:number",
    "overlong": "lora_rl.rewards.text:overlong",
    "reasoning_gym": "lora_rl.rewards.gym:reasoning_gym",
}
"""Where each built-in grader is; imported only when a run names it."""

_BOXED = "boxed_"


def resolve_grader(name: str) -> Grader:
    r"""The grader called `name`: built in, or `module:function`; after `boxed_` it sees the last `\boxed{}` alone.

    Imports what the grader imports, so that no sample's deadline pays for it. Raises ConfigError for an unknown name
    and for a module that cannot be imported.
    """
    if name.startswith(_BOXED):
        return _of_the_boxed_part(resolve_grader(name.removeprefix(_BOXED)))
    module_name, colon, function_name = BUILT_IN.get(name, name).partition(":")
    if not colon:
        raise ConfigError(f"{name}: no such grader; use one of {', '.join(BUILT_IN)}, or module:function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"{name}: {module_name} cannot be imported ({type(error).__name__}: {error})") from error
    grader = vars(module).get(function_name)
    if not callable(grader):
        raise ConfigError(f"{name}: {module_name} has no function {function_name}; correct the name")
    return grader


def checked_params(grader: Grader, params: Mapping[str, Any]) -> dict[str, Any]:
    """`params` as the grader's signature asks: annotated ones are validated and converted, as a text to `re.Pattern`.

    Raises ConfigError for an unknown, missing or unfit one.
    """
    try:
        signature = inspect.signature(grader, eval_str=True)
        signature.bind(None, **params)
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{error}; it is called with a sample and the term's params") from error
    return {key: _checked(key, value, signature.parameters.get(key)) for key, value in params.items()}


def _checked(key: str, value: Any, parameter: inspect.Parameter | None) -> Any:
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return value
    try:
        return TypeAdapter(parameter.annotation).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"params.{key}: {value!r}: {error.errors()[0]['msg']}") from error
    except PydanticUserError:
        return value  # A type of the user's that pydantic knows nothing about.


def _of_the_boxed_part(grader: Grader) -> Grader:
    @functools.wraps(grader)
    def boxed(sample: Sample, **params: Any) -> Any:
        return grader(replace(sample, response_text=last_boxed(sample.response_text) or ""), **params)

    return boxed
