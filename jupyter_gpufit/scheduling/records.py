"""What is remembered of allocations by name, and after their end."""

from __future__ import annotations

from ..models import Allocation

__all__ = ["Records"]


class Records:
    """Names of all known allocations, and the last versions of those that ended. Made by the scheduler."""

    def __init__(self) -> None:
        self._ended: dict[str, Allocation] = {}
        self._by_name: dict[str, dict[str, str]] = {}  # name -> id -> owner

    def add(self, allocation: Allocation) -> None:
        """It exists."""
        self._by_name.setdefault(allocation.name, {})[allocation.id] = allocation.owner

    def retire(self, allocation: Allocation, keep: int) -> list[str]:
        """It has ended. Returns the ids of those that are too many now, and forgotten."""
        self._ended[allocation.id] = allocation
        gone = []
        while len(self._ended) > max(0, keep):
            oldest = self._ended.pop(next(iter(self._ended)))
            ids = self._by_name.get(oldest.name, {})
            ids.pop(oldest.id, None)
            if not ids:
                self._by_name.pop(oldest.name, None)
            gone.append(oldest.id)
        return gone

    def ended(self) -> list[Allocation]:
        """Those that ended, in the order they did."""
        return list(self._ended.values())

    def get(self, id: str) -> Allocation | None:
        """One that ended."""
        return self._ended.get(id)

    def of_name(self, name: str) -> list[str]:
        """Ids of all that have this name."""
        return list(self._by_name.get(name, ()))

    def __contains__(self, name: object) -> bool:
        """Whether any known allocation has that name."""
        return name in self._by_name
