"""No network for a process and its children: refused inside the interpreter, whatever library asks.

`install` uses an audit hook, which Python code can neither bypass through another socket class nor remove.
Only loopback and local (Unix) sockets stay open, which worker processes on one machine need. Native code that
opens sockets without Python is held by the network namespace, where the machine grants one.
"""

from __future__ import annotations

import ipaddress
import sys
from typing import Any

MARK = "_counterproof_network_guard"
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback", ""})
_EVENTS = frozenset(
    {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
)


class NetworkRefusedError(ConnectionRefusedError):
    """A connection beyond this machine was tried while the network is off."""


def install() -> None:
    """Refuse every connection beyond this machine from now on, for the life of this process."""
    if not installed():
        sys.addaudithook(_hook)
        setattr(sys, MARK, True)


def installed() -> bool:
    """Whether this process is guarded."""
    return bool(getattr(sys, MARK, False))


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    target = args[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else args[1]
    host = target[0] if isinstance(target, tuple) and target else target
    if isinstance(target, tuple) or event.startswith("socket.get"):
        _refuse_unless_local(host)


def _refuse_unless_local(host: object) -> None:
    name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
    if name is None or (isinstance(name, str) and name.lower() in _LOCAL_NAMES):
        return
    try:
        if isinstance(name, str) and ipaddress.ip_address(name.split("%")[0]).is_loopback:
            return
    except ValueError:
        pass
    raise NetworkRefusedError(f"the network is off in a replay; refused a connection to {name!r}")
