"""Lua scripts. Servers identify a script by the hash of its text."""

import hashlib
from typing import Final, NamedTuple

# A script for the node that a slot is moving to. Such a node refuses a script that declares a missing key, and any
# session can be new. So the keys are arguments. Reading each of them fails before anything is changed, if this node
# does not serve the slot. Subscribers are still at the other node, so the reply names the channels of messages.
_AT_TARGET: Final = """for at = 1, tonumber(table.remove(ARGV, 1)) do
    KEYS[at] = table.remove(ARGV, 1)
    redis.call('EXISTS', KEYS[at])
end
local channels, here = {}, redis
local function run(redis)
%s
end
local function call(name, ...)
    if name == 'SPUBLISH' then
        channels[#channels + 1] = (...)
    end
    return here.call(name, ...)
end
return {run({call = call}), channels}
"""


class Script(NamedTuple):
    """One script."""

    text: bytes  # the source text
    sha: bytes  # the hash that identifies it at the server, in hexadecimal digits
    arguments: tuple[str, ...] = ()  # the names of its arguments in order

    @property
    def text_at_target(self) -> bytes:
        """The source text for the node that its slot is moving to.

        It declares no keys. Its arguments are the number of keys, the keys and the script's arguments. It returns the
        script's reply and a list of channels.
        """
        return (_AT_TARGET % self.text.decode()).encode()


def make_script(text: str, arguments: tuple[str, ...] = ()) -> Script:
    encoded = text.encode()
    return Script(encoded, hashlib.sha1(encoded, usedforsecurity=False).hexdigest().encode(), arguments)


Call = tuple[Script, tuple[bytes | str | int, ...]]
"""A script, and its arguments in order."""
