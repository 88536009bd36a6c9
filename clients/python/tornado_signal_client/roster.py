"""The members of a room: their beacons and names, and the order of attempts. Nothing here waits or sends."""

import random
from collections.abc import Callable

from .room_peer import MAX_TRIES, Member


class Roster:
    """The members with a beacon, an attempt or a connection. Those that wait for an attempt have a random order.

    Args:
        on_owner: called with the previous and the next owner of a name.
    """

    def __init__(self, on_owner: Callable[[Member, Member], None]) -> None:
        self.members: dict[str, Member] = {}
        self._on_owner = on_owner
        self._named: dict[str, dict[str, Member]] = {}  # by name and id
        self._owners: dict[str, Member] = {}  # by name
        self._waiting: list[list[Member]] = [[] for _ in range(MAX_TRIES + 1)]  # those that wait, by their tries
        self._places: dict[str, tuple[list[Member], int]] = {}  # of these in the lists, by id

    def member(self, id: str, info: str, name: str | None) -> Member:
        """Return the member with an id, or a new one that is not added yet."""
        return self.members.get(id) or Member(id, info, name)

    def clear(self) -> None:
        """Remove all beacons, before they are listed again, and the members without an attempt or a connection."""
        for member in self.members.values():
            self.discard(member)
            member.code = member.beacon = None
            member.beacons.clear()
        for member in list(self.members.values()):
            if member.peer is None:
                self.remove(member)

    def add(self, member: Member, name: str | None) -> Member:
        """Add a member, or change its name. Return the owner of the name."""
        if self.members.get(member.id) is not member or member.name != name:
            self.remove(member)
            member.name = name
            self.members[member.id] = member
            if name is not None:
                self._named.setdefault(name, {})[member.id] = member
        owner = member if name is None else self._owners.setdefault(name, member)
        if member.claim < owner.claim:
            self.find_owner(name)
        return self.owner(member)

    def remove(self, member: Member) -> None:
        """Remove a member. The next member with the same name then owns it."""
        self.discard(member)
        if self.members.get(member.id) is member:
            del self.members[member.id]
            if member.name is not None:
                del self._named[member.name][member.id]
                if self._owners[member.name] is member:
                    self.find_owner(member.name)

    def owner(self, member: Member) -> Member:
        """Return the member that owns the name of a member, which is itself without a name."""
        return member if member.name is None else self._owners.get(member.name, member)

    def named(self, name: str | None) -> list[Member]:
        """Return the members with a name, the first one to enter first."""
        return sorted(self._named.get(name or "", {}).values(), key=lambda member: member.order)

    def find_owner(self, name: str | None) -> None:
        """Find the member that owns a name, after the claims to it have changed."""
        if name is None or name not in self._owners:
            return
        if others := self._named[name]:
            previous, owner = self._owners[name], min(others.values(), key=lambda member: member.claim)
            self._owners[name] = owner
            if owner is not previous:
                self._on_owner(previous, owner)
        else:
            del self._named[name], self._owners[name]

    def enqueue(self, member: Member) -> None:
        """Queue a member for an attempt, after those with fewer tries.

        Its right to connect is not checked again. Code that ends this right calls `discard`.
        """
        self.discard(member)
        members = self._waiting[min(MAX_TRIES, member.tries)]
        self._places[member.id] = members, len(members)
        members.append(member)

    def discard(self, member: Member) -> None:
        if member.id in self._places:
            members, place = self._places.pop(member.id)
            last = members.pop()
            if last is not member:
                members[place] = last
                self._places[last.id] = members, place

    def next(self) -> Member | None:
        """Return a random one of the least tried members that wait, or None if no member waits."""
        members = next(filter(None, self._waiting), None)
        return random.choice(members) if members else None
