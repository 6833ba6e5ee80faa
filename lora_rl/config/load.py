"""YAML file and `--set` overrides to a checked config."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from lora_rl.config import uri
from lora_rl.config.data import FileData, HubData
from lora_rl.config.run import RunConfig, faults_between_sections
from lora_rl.errors import ConfigError


def load_config(
    path: str | Path, overrides: Iterable[str] = (), *, run_name: str | None = None, store: str | None = None
) -> RunConfig:
    """The config in a YAML file with `key.path=value` overrides applied (values are YAML); it has a run name.

    `run_name` and `store` (a URI) replace what the file says, letter by letter.

    Raises ConfigError that lists every fault at once.
    """
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML config") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: holds {type(values).__name__}, not a mapping of config sections")
    for override in overrides:
        _apply(values, override)
    if run_name is not None or values.get("run_name") is None:
        values["run_name"] = path.stem if run_name is None else run_name
    if store is not None:
        values["store"] = {"uri": store}
    return _with_absolute_paths(check_config(values, source=str(path)))


def check_config(values: dict[str, Any], source: str = "config") -> RunConfig:
    """`values` as a RunConfig. Raises ConfigError that lists every fault at once."""
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_text(source, [_fault(details) for details in error.errors()])) from None
    faults = faults_between_sections(config)
    if faults:
        raise ConfigError(_text(source, faults))
    return config


def _with_absolute_paths(config: RunConfig) -> RunConfig:
    """Relative paths are the caller's: actors run elsewhere, and a resumed run may start in another folder."""

    def absolute(path: str) -> str:
        return str(Path(path).absolute()) if Path(path).exists() else path

    updates: dict[str, Any] = {"store": config.store.absolute()}
    updates["model"] = config.model.model_copy(update={"name": absolute(config.model.name)})
    if config.adapter.init:
        updates["adapter"] = config.adapter.model_copy(update={"init": absolute(config.adapter.init)})
    if isinstance(config.data, FileData):
        updates["data"] = config.data.model_copy(update={"uri": absolute(config.data.uri)})
    if isinstance(config.data, HubData):
        updates["data"] = config.data.model_copy(update={"path": absolute(config.data.path)})
    return config.model_copy(update=updates)


def _text(source: str, faults: list[str]) -> str:
    return f"{source}: {len(faults)} fault{'s' if len(faults) > 1 else ''}\n" + "\n".join(
        f"  {fault}" for fault in faults
    )


def _fault(details: Any) -> str:
    field = ".".join(str(part) for part in details["loc"])
    match details["type"]:
        case "extra_forbidden":
            return f"{field}: unknown key; remove it or correct its name"
        case "missing":
            return f"{field}: missing; it has no default"
        case uri.SECRET:
            return f"{field}: {details['msg']}"
        case _:
            return f"{field}: {uri.redacted(repr(details['input']))}: {details['msg'][0].lower()}{details['msg'][1:]}"


def _apply(values: dict[str, Any], override: str) -> None:
    key_path, equals, text = override.partition("=")
    if not equals or not all(key_path.split(".")):
        raise ConfigError(f"--set {override!r}: not of the form key.path=value")
    *sections, key = key_path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {override!r}: {section} is not a section")
    try:
        values[key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not valid YAML ({_problem(error)}); quote it") from error


def _problem(error: yaml.YAMLError) -> str:
    return str(error).splitlines()[0]
