"""Where everything lies in a packet, which role it has, and how large it may be.

The world is closed: a path that matches no rule of this page is refused, even when the manifest lists it.
A packet has one of two forms, named in `critical`: open (its results lie under `results/`, level L0, unsigned) or
sealed (its results lie encrypted under `sealed/`, level L3, signed by its author).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from counterproof_review.packet.errors import PacketError

SCHEMA = "replication-packet/1"
SCHEMA_NAME = "replication-packet"
SCHEMA_VERSION = 1
# What a reader of this version understands; any other name in `critical` is refused.
OPEN = "open-results"
SEALED_FORM = "sealed-results"
UNDERSTOOD: frozenset[str] = frozenset({OPEN, SEALED_FORM})
LEVELS = {OPEN: "L0", SEALED_FORM: "L3"}
LEAST_ARMS = {OPEN: 2, SEALED_FORM: 4}

PACKET = "PACKET.json"
MANIFEST = "MANIFEST.jsonl"
PREREG = "protocol/prereg.json"
SCOPE = "protocol/scope.json"
ARMS = "replay/arms/"
SCHEDULE = "replay/schedule.json"
RUN_LOCK = "replay/run.lock.json"
ENVIRONMENT_LOCK = "replay/env/env.lock.json"
CODE_LOCK = "replay/code/code.lock.json"
INPUTS = "replay/inputs/"
WARMUP = "replay/inputs/warmup.jsonl"
MODELS_LOCK = "replay/models/models.lock.json"
NOISE = "noise/noise.json"
ENVIRONMENT = "provenance/environment.json"
LINEAGE = "provenance/lineage.json"
RESULTS = "results/results.json"
RESULT_ROWS = "results/requests.parquet"
RESULTS_FOLDER = "results/"
CHALLENGE = "protocol/challenge_space.json"
SEALED = "sealed/results.sealed.json"
SEALED_FOLDER = "sealed/"
SIGNATURE = "SIGNATURES/author.dsse.json"

MIB = 1 << 20
MAX_PACKET_BYTES = 2048 * MIB
MAX_MEMBER_BYTES = 1024 * MIB
MAX_FILES = 4096
MAX_NAME_BYTES = 120
MAX_RATIO = 200  # declared size over stored size: above it a compressed member is a bomb
MAX_JSON_BYTES = 4 * MIB  # parsed values take up to thirty times the room of their text
MAX_LINES = 1_000_000
MAX_ROWS = 10_000_000
MAX_JSON_DEPTH = 32
CHUNK_BYTES = MIB
LIMITS: dict[str, int] = {
    "packet_bytes": MAX_PACKET_BYTES,
    "member_bytes": MAX_MEMBER_BYTES,
    "files": MAX_FILES,
    "name_bytes": MAX_NAME_BYTES,
}

JSON = "application/json"
JSONL = "application/jsonl"
PARQUET = "application/vnd.apache.parquet"

EXECUTOR = "counterproof-run/1"
ORDER_RULE = "sha256-order/1"

MIN_BLOCKS = 6  # fewer replayed blocks never decide anything
CONSISTENCY_BAND = 0.05  # the replay's ratio may differ from the author's by this much; noise cannot widen it


@dataclass(frozen=True)
class Place:
    """A rule of the layout: which paths, what they are for, how they are read. `form` "": in packets of both."""

    name: str
    pattern: re.Pattern[str]
    role: str
    media_type: str
    form: str = ""


def _exactly(path: str, role: str, media_type: str = JSON, *, form: str = "") -> Place:
    return Place(path, re.compile(re.escape(path)), role, media_type, form)


def _several(name: str, stem: str, role: str, media_type: str) -> Place:
    return Place(name, re.compile(stem), role, media_type)


PLACES: tuple[Place, ...] = (
    _exactly(PACKET, "packet"),
    _exactly(PREREG, "protocol"),
    _exactly(SCOPE, "protocol"),
    _several(f"{ARMS}<arm>.json", re.escape(ARMS) + r"[0-9a-f]{8}\.json", "arm", JSON),
    _exactly(SCHEDULE, "schedule"),
    _exactly(RUN_LOCK, "lock"),
    _exactly(ENVIRONMENT_LOCK, "lock"),
    _exactly(CODE_LOCK, "lock"),
    _exactly(WARMUP, "input", JSONL),
    _several(f"{INPUTS}block-<n>.jsonl", re.escape(INPUTS) + r"block-[0-9]{2,4}\.jsonl", "input", JSONL),
    _exactly(MODELS_LOCK, "lock"),
    _exactly(NOISE, "noise"),
    _exactly(ENVIRONMENT, "provenance"),
    _exactly(LINEAGE, "provenance"),
    _exactly(RESULTS, "author-results", form=OPEN),
    _exactly(RESULT_ROWS, "author-results", PARQUET, form=OPEN),
    _exactly(CHALLENGE, "protocol", form=SEALED_FORM),
    _exactly(SEALED, "author-results", form=SEALED_FORM),
)
# The names that may have capitals.
FIXED_NAMES: frozenset[str] = frozenset({PACKET, MANIFEST, SIGNATURE})

_NAME = re.compile(r"[a-z0-9._/-]+")
_DRIVE = re.compile(r"[A-Za-z]:")


def place_of(path: str) -> Place:
    """The layout's rule for `path`. Raises PacketError E_EXTRA where there is none."""
    for place in PLACES:
        if place.pattern.fullmatch(path):
            return place
    raise PacketError("E_EXTRA", "the layout has no such file, so nothing reads it", path=path)


def input_path(block: int) -> str:
    """Where the requests of a block stand."""
    return f"{INPUTS}block-{block:02d}.jsonl"


def arm_path(opaque: str) -> str:
    """Where the configuration of an arm stands, under its opaque name (8 hex digits)."""
    return f"{ARMS}{opaque}.json"


def check_name(name: str) -> str:
    """Return `name` if it may stand in a packet; raise PacketError E_PATH saying what is wrong with it."""
    if name in FIXED_NAMES:
        return name
    reason = _fault(name)
    if reason:
        raise PacketError("E_PATH", reason, path=ascii(name)[:160])
    return name


def _fault(name: str) -> str:
    parts = name.split("/")
    if not name:
        return "the name is empty"
    if len(name.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES:
        return f"the name is longer than {MAX_NAME_BYTES} bytes"
    if "\\" in name:
        return "the name has a backslash"
    if _DRIVE.match(name):
        return "the name starts with a drive letter"
    if name.startswith("/"):
        return "the name is absolute"
    if ".." in parts:
        return "the name climbs out of the folder"
    if "." in parts or "" in parts:
        return "the name has an empty or '.' part"
    if not _NAME.fullmatch(name):
        return "only a-z, 0-9, '.', '_', '-' and '/' may stand in a name"
    return ""
