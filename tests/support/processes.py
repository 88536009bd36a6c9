"""The processes of this machine."""

from pathlib import Path


def family(process):
    """Return the ids of a process and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has exited
    members = [process.pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members
