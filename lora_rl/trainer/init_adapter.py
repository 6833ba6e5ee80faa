"""What a config takes from the PEFT adapter that a run starts from, and where the two may not differ. Free of torch."""

from collections.abc import Mapping
from typing import Any

from lora_rl.config import AdapterConfig, RunConfig
from lora_rl.config.run import faults_between_sections
from lora_rl.errors import ConfigError, DataError
from lora_rl.models import read_model_config
from lora_rl.trainer.peft_config import PeftAdapter, read_peft
from lora_rl.trainer.targets import covered_modules
from lora_rl.trainer.topology import has_experts


def resolve_run(config: RunConfig) -> RunConfig:
    """The config as it is recorded: what it leaves to the adapter at `adapter.init` is that adapter's.

    Raises ConfigError where the adapter cannot be read or taken, or the two differ.
    """
    if config.adapter.init is None:
        return config
    try:
        adapter = resolve_init(config.adapter, read_model_config(config.model))
    except DataError as error:
        raise ConfigError(str(error)) from error
    resolved = config.model_copy(update={"adapter": adapter})
    if faults := faults_between_sections(resolved):
        raise ConfigError("\n".join(faults))
    return resolved


def resolve_init(adapter: AdapterConfig, model_config: Mapping[str, Any] | None = None) -> AdapterConfig:
    """`adapter` with rank, alpha, rslora and targets of `adapter.init` where it gives none of its own.

    `model_config` is the base's config.json; null where only the adapter can tell whether there are experts.

    Raises ConfigError for each field that differs, and as `read_peft` does.
    """
    if adapter.init is None:
        return adapter
    found = read_peft(adapter.init)
    resolved = adapter.model_copy(update={field: getattr(found, field) for field in adapter.left_to_init})
    sparse = found.sparse if model_config is None else has_experts(model_config)
    modules = covered_modules(resolved, found.num_layers, sparse=sparse)
    if faults := [*differences_from(found, resolved, modules), *_other_width(found, model_config or {})]:
        raise ConfigError("\n".join(faults))
    return resolved


def differences_from(found: PeftAdapter, adapter: AdapterConfig, modules: tuple[str, ...]) -> list[str]:
    """Each field of `adapter`, which covers `modules`, that is not `found`'s, as `field: value, rule; mend`."""
    faults = [
        f"adapter.{field}: {ours!r}, but {theirs!r} in adapter.init {found.root}; leave it out or give {theirs!r}"
        for field, ours, theirs in (
            ("rank", adapter.rank, found.rank),
            ("alpha", adapter.alpha, found.alpha),
            ("rslora", adapter.rslora, found.rslora),
        )
        if ours != theirs
    ]
    covers_too_much, leaves_out = {*modules} - {*found.modules}, {*found.modules} - {*modules}
    faults += [
        _other_targets(adapter, found, f"{verb} {min(names)} ({len(names)} such), which it {does}")
        for names, verb, does in ((covers_too_much, "covers", "lacks"), (leaves_out, "leaves out", "holds"))
        if names
    ]
    return faults


def _other_targets(adapter: AdapterConfig, found: PeftAdapter, how: str) -> str:
    if adapter.target_modules == found.target_modules and not adapter.exclude_modules:
        return f"adapter.init: {found.root} is of a model with other layers: ours {how}; give an adapter of model.name"
    field = "target_modules" if adapter.target_modules != found.target_modules else "exclude_modules"
    ours = getattr(adapter, field)
    return (
        f"adapter.{field}: {list(ours) if isinstance(ours, tuple) else ours!r} {how}, adapter.init {found.root}; "
        f"leave it out, its projections are {_text(found.target_modules)}"
    )


def _other_width(found: PeftAdapter, model_config: Mapping[str, Any]) -> list[str]:
    width = model_config.get("hidden_size")
    if None in (width, found.width) or width == found.width:
        return []
    return [
        f"adapter.init: {found.root} is of a model {found.width} wide, model.name is {width} wide; give one of that"
    ]


def _text(targets: tuple[str, ...]) -> str:
    return ", ".join(targets[:8]) + (f" and {len(targets) - 8} more" if len(targets) > 8 else "")
