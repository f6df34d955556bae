"""The one error of packets. Its code is stable and says which rule the packet broke."""

from __future__ import annotations

from counterproof.errors import EXIT_INPUT, EXIT_INVALID, EXIT_SETUP, CounterproofError

# The container or its content is not a packet, or is dangerous to read: refused as bad input.
MALFORMED = (
    "E_ZIP",  # not a zip of the packet's plain form
    "E_TRUNCATED",  # ends before its own directory says so
    "E_LAYOUT",  # bytes before, between or after the members
    "E_HEADER",  # a local header and the directory disagree, or a header field is not the fixed one
    "E_COMMENT",
    "E_EXTRA_FIELD",
    "E_ORDER",
    "E_PATH",
    "E_DUPLICATE",
    "E_SYMLINK",
    "E_DIRECTORY",
    "E_ENCRYPTED",
    "E_COMPRESSED",
    "E_BOMB",
    "E_LIMIT",
    "E_PICKLE",
    "E_JSON",
    "E_CANONICAL",
    "E_TABLE",
    "E_SCHEMA",
    "E_DESTINATION",
    "E_UNSAFE",  # an arm would read or write outside the replay's folder
)
# The packet is well formed but its content is not what it says: no evidence.
UNTRUE = (
    "E_HASH",
    "E_CRC",
    "E_EXTRA",
    "E_MISSING",
    "E_ROWS",
    "E_ARMS",
    "E_LEAK",
    "E_ROOT",
    "E_STUDY",
    "E_SIGNATURE",
)
# Something on this machine is missing: a newer reader, a model.
SETUP = ("E_SCHEMA_NEWER", "E_MODEL_MISSING")

_EXIT = {
    **dict.fromkeys(MALFORMED, EXIT_INPUT),
    **dict.fromkeys(UNTRUE, EXIT_INVALID),
    **dict.fromkeys(SETUP, EXIT_SETUP),
}


class PacketError(CounterproofError):
    """A packet is refused. `code` names the rule, `path` the member at fault (empty: the whole packet).

    `exit_code` follows from the code: 2 malformed or dangerous, 3 something is missing here, 5 not what it
    says it is.
    """

    def __init__(self, code: str, message: str, *, path: str = "", details: list[str] | None = None) -> None:
        where = f"{code} {path}: " if path else f"{code}: "
        super().__init__(where + message, details=details)
        self.code = code
        self.path = path
        self.exit_code = _EXIT[code]
