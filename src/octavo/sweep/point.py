"""Setup and Point: one configuration of the sweep, alone and with the load that it is measured under."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from octavo.units import format_bytes


@dataclass(frozen=True, slots=True)
class Setup:
    """What is compared: where keys and values lie, and how attention reads them.

    reserve: of contiguous, else None. block_size: of the layouts that have blocks, else None.
    """

    layout: str
    reserve: str | None
    block_size: int | None
    attention: str

    @property
    def title(self) -> str:
        """ "contiguous (max-len)", "paged 16", "virtual"; the attention path only where it is not the default one."""
        parts = [self.layout, f"({self.reserve})" if self.reserve else str(self.block_size or "")]
        return " ".join(filter(None, parts)) + ("" if self.attention == "fused" else f", {self.attention}")

    @property
    def in_a_step(self) -> Setup:
        """What of it a decode step depends on: not on what contiguous reserves ahead."""
        return replace(self, reserve=None)

    @property
    def slug(self) -> str:
        """The same for a file's name."""
        parts = (self.layout, self.reserve, self.block_size, self.attention)
        return "-".join(str(part) for part in parts if part is not None)

    @property
    def settings(self) -> dict[str, Any]:
        """Engine settings."""
        values = {
            "kv_layout": self.layout,
            "contiguous_reserve": self.reserve,
            "block_size": self.block_size,
            "attention": self.attention,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def options(self) -> str:
        """As options of the command line."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items() if value != "fused")


@dataclass(frozen=True, slots=True)
class Group:
    """What has to be equal for two setups to be compared. kv_memory: bytes."""

    suite: str
    concurrency: int
    kv_memory: int

    @property
    def title(self) -> str:
        return f"{self.suite}, {self.concurrency} at once, {format_bytes(self.kv_memory)} of KV memory"


@dataclass(frozen=True, slots=True)
class Point:
    """A setup under a load: a row of the table."""

    group: Group
    setup: Setup

    @property
    def slug(self) -> str:
        """For a file's name; no two points have the same."""
        group = self.group
        return f"{group.suite}-c{group.concurrency}-{group.kv_memory}-{self.setup.slug}"
