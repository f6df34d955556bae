"""The loopback of a network namespace: a new one has it switched off, and a server on this machine is reached by it."""

from __future__ import annotations

import fcntl
import socket
import struct

# linux/sockios.h and linux/if.h: read and set an interface's flags.
_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914
_UP = 0x1
_REQUEST = "16sh14x"


def bring_up() -> bool:
    """Switch the loopback on where it is off. False where it stays off: no permission, or no such interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            found = fcntl.ioctl(asked.fileno(), _GET_FLAGS, struct.pack(_REQUEST, b"lo", 0))
            flags = struct.unpack(_REQUEST, found)[1]
            if not flags & _UP:
                fcntl.ioctl(asked.fileno(), _SET_FLAGS, struct.pack(_REQUEST, b"lo", flags | _UP))
        except OSError:
            return False
    return True
