"""Root in other users' directories: a command that root starts becomes the owner of the directory that it opens.

Otherwise the owner could replace files by links, and have root write to any file of the system.
"""

import contextlib
import logging
import os
import stat
from pathlib import Path

from ..errors import OperatorError

log = logging.getLogger(__name__)

MAX_PARTS = 1000  # of a path with its links


def become_owner(path: Path, *, enter: bool = False) -> Path:
    """As root, become the user and the group that decide about the files in a directory. Root cannot be regained.

    On the way to `path`, the first directory or link that does not belong to root decides. Its owner could replace
    everything after it. The directory can be missing. With `enter` it becomes the current directory, because only root
    can enter a directory on the way. Return its path for this process. Refuse a directory about which several users
    decide.
    """
    if os.geteuid() != 0:
        return path
    here, remaining = Path("/"), [*path.absolute().parts[:0:-1]]
    for _ in range(MAX_PARTS):
        try:
            status = os.lstat(here)
        except OSError:
            return path  # it is missing, or opening it fails in the same way
        if status.st_uid != 0 and _is_mapped(status.st_uid):
            break
        if stat.S_ISLNK(status.st_mode):
            remaining += Path(os.readlink(here)).parts[::-1]
            here = here.parent
        elif status.st_mode & _writers(status) and not (remaining and status.st_mode & stat.S_ISVTX):
            raise OperatorError(
                f"other users than root can write to {here}, and could replace files there; "
                f"run: chmod go-w {here}, or run this command as the user of the server"
            )
        if not remaining:
            return path
        here /= remaining.pop()
    else:
        return path  # links in a circle
    # A directory of a service can have the group of root, which the service does not have.
    user, group = status.st_uid, status.st_gid or status.st_uid
    try:
        if enter:
            remaining += [] if stat.S_ISDIR(status.st_mode) else [here.name]
            os.chdir(here if stat.S_ISDIR(status.st_mode) else here.parent)
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
    except OSError as error:
        raise OperatorError(
            f"cannot become user {user}, the owner of {here}: {error.strerror}; run this command as that user"
        ) from error
    log.info("running as user %d and group %d: that user owns %s", user, group, here)
    # A directory that only root could enter has no absolute path for this process. The relative path works there.
    return path.absolute() if os.path.exists(path.absolute()) or not enter else Path(*remaining[::-1])


def check_owner(path: Path) -> None:
    """Check that root does not work in the directory of another user, who could have just created it."""
    user = path.stat().st_uid
    if os.geteuid() == 0 and user != 0 and _is_mapped(user):
        raise OperatorError(f"{path} belongs to user {user}; run this command as that user")


def _writers(status: os.stat_result) -> int:
    """Return the permission bits that let users other than root write."""
    return stat.S_IWOTH | (stat.S_IWGRP if status.st_gid else 0)


def _is_mapped(user: int) -> bool:
    """Return whether a user exists in the user namespace of this process. Others share one number there."""
    with contextlib.suppress(OSError):
        ranges = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
        return any(first <= user < first + count for first, _, count in ranges)
    return True
