"""What the store needs of the place where its bytes lie."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object as it is found, unread."""

    key: str
    size: int
    """Bytes."""
    modified: int
    """When it was last written, in whole seconds since 1970 by the clock of the place: servers tell no finer."""


class Objects(Protocol):
    """Where the bytes lie. Methods raise StoreError, with the mend, for whatever is refused for good."""

    uri: str
    """Absolute URI of the root, without a slash at its end."""

    def impatient(self) -> "Objects":
        """The same objects, with hardly any patience for a server that does not answer."""
        ...

    def write(self, key: str, data: bytes) -> None:
        """Replaces the object."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """False where the object exists: it stays as it is."""
        ...

    def read(self, key: str, size: int = 0) -> bytes | None:
        """None where there is no such object. `size`, where known, lets large ones be fetched in parallel."""
        ...

    def stat(self, key: str) -> StoredObject | None:
        """None where there is no such object."""
        ...

    def find(self, prefix: str) -> list[StoredObject]:
        """The objects below the folder `prefix`, sorted by key."""
        ...

    def delete(self, key: str) -> None:
        """Done also where there is no such object."""
        ...
