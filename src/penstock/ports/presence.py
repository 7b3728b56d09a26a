"""Presence: which clients are on which topics, by way of which processes.

An entry belongs to a process and counts as long as that process is alive. So nothing is written
while clients stay, and a process that was killed takes its clients with it at once. After a
restore the list is empty: entries of the backup are not taken over, and processes join theirs
again when they find the new epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.model import Instance, Presence


class PresenceWriter(Protocol):
    """Each answer says what is to be told to others, in the transaction that made it true."""

    def join(self, instance: Instance, members: Sequence[Presence]) -> list[Presence]:
        """Enter these clients for the process. Whoever has joined already is entered anew.

        Returns those who were not listed on their topic before, or with other information.
        """

    def leave(self, instance: Instance, members: Sequence[tuple[str, str]]) -> list[Presence]:
        """Remove the process's entries of these (topic, client).

        Returns those who are not listed any more: not one who is there by another live process,
        nor one who had not joined.
        """

    def leave_all(self, instance: Instance) -> list[Presence]:
        """As `leave`, for everybody whom the process has entered."""

    def forget_dead(self, *, limit: int = 1_000) -> list[Presence]:
        """Remove up to `limit` entries of processes that have ended.

        Returns those of them who are not there by a live process. Each is returned to one
        caller, once, whoever calls. There may be more while `has_dead` says so.
        """


class PresenceReader(Protocol):
    def members(self, topic: str, limit: int) -> list[Presence]:
        """The first so many clients by name who are on the topic by way of a live process.

        One who is there by several is listed once, as joined last.
        """

    def count(self, topic: str) -> int:
        """How many clients are on the topic by way of live processes."""

    def has_dead(self) -> bool:
        """Whether `forget_dead` has something to do.

        Writes nothing, and costs a look at each process with clients, however many those are.
        """
