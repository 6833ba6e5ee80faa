"""Which adapter versions the engine holds, which of them take new requests, and which must go."""

from dataclasses import dataclass

from lora_rl.engine.types import Probe
from lora_rl.errors import EngineError
from lora_rl.store.refs import AdapterRef


@dataclass(eq=False)
class Version:
    """A loaded adapter version."""

    ref: AdapterRef
    probe: Probe
    lora_id: int
    """vLLM's number for it; never used twice, so nothing cached under it can be stale."""
    leases: int = 0
    """Batches that are running or waiting under it."""
    retired: bool = False
    """Takes no new requests; leaves when its last lease ends."""

    @property
    def label(self) -> str:
        return self.ref.label

    def same_files(self, ref: AdapterRef) -> bool:
        """Whether weights and config are those of `ref`."""
        return (self.ref.weights.sha256, self.ref.config.sha256) == (ref.weights.sha256, ref.config.sha256)


class VersionRegistry:
    """At most `resident_versions` of each adapter serve, for `slots` adapters; one more can be loaded beside them.

    Order is that of publishing, not of version numbers: another run may publish lower ones.
    """

    def __init__(self, *, slots: int, resident_versions: int) -> None:
        self._slots = slots
        self._resident_versions = resident_versions
        self._loaded: list[Version] = []
        self._last_id = 0

    @property
    def capacity(self) -> int:
        """Versions that may be loaded at a time, retired ones included."""
        return self._slots * self._resident_versions + 1

    @property
    def has_room(self) -> bool:
        """Whether one more version can be loaded."""
        return len(self._loaded) < self.capacity

    def serving(self) -> list[Version]:
        """Versions that take requests, oldest publish first."""
        return [version for version in self._loaded if not version.retired]

    def find(self, label: str) -> Version | None:
        """The version that serves under `label`."""
        return next((version for version in self.serving() if version.label == label), None)

    def acquire(self, label: str) -> Version:
        """A lease on the version under `label`. Raises EngineError where none serves: the base never answers for it."""
        version = self.find(label)
        if version is None:
            resident = ", ".join(version.label for version in self.serving()) or "none"
            raise EngineError(f"adapter version {label}: not loaded here (loaded: {resident}); publish it first")
        version.leases += 1
        return version

    def release(self, version: Version) -> None:
        """Ends a lease."""
        version.leases -= 1

    def new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def add(self, ref: AdapterRef, probe: Probe, lora_id: int) -> None:
        """A loaded and proven version starts to serve; what it displaces retires."""
        replaced = self.find(ref.label)
        if replaced is not None:
            replaced.retired = True
        self._loaded.append(Version(ref, probe, lora_id))
        self.retire_surplus(ref.name, incoming=0)

    def touch(self, version: Version) -> None:
        """Makes `version` count as the latest published."""
        self._loaded.remove(version)
        self._loaded.append(version)

    def retire(self, name: str) -> None:
        """All versions of the adapter `name` stop taking requests."""
        for version in self.serving():
            version.retired = version.retired or version.ref.name == name

    def retire_surplus(self, name: str, *, incoming: int) -> None:
        """Retires what has to go before `incoming` more versions of the adapter `name`: its oldest ones beyond the
        window, and, where all slots are taken, those of idle other adapters, the one published longest ago first.
        """
        own = [version for version in self.serving() if version.ref.name == name]
        for version in own[: max(0, len(own) + incoming - self._resident_versions)]:
            version.retired = True
        others = {version.ref.name: None for version in reversed(self.serving()) if version.ref.name != name}
        surplus = len(others) + 1 - self._slots
        for other in reversed(others):
            if surplus > 0 and not any(version.leases for version in self._loaded if version.ref.name == other):
                self.retire(other)
                surplus -= 1

    def unneeded(self) -> list[Version]:
        """The retired versions without a lease: to be unloaded, and then removed."""
        return [version for version in self._loaded if version.retired and not version.leases]

    def remove(self, version: Version) -> None:
        """Forgets a version that is no longer loaded."""
        self._loaded.remove(version)
