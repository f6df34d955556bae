"""The stand-in model of fake_engine with block moves: contents go to host slots and files as bytes, and can be harmed."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from intaglio.config import EngineConfig
from intaglio.intake.step_plan import BlockMove, MoveResult, StepPlan, StepResult


def _fake_engine() -> ModuleType:
    name = "intaglio_tests_fake_engine"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("fake_engine.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


fake = _fake_engine()


class MovingRunner(fake.HashRunner):
    """fault: asked for every move; "fail" and "late" make it an error, "short" and "flip" harm what arrives.

    A block's bytes are its tokens plus one (0: never written), each in as many bytes as its group says.
    moved counts the moves that went well, by kind.
    """

    def __init__(self, block_tokens: int, **options: Any) -> None:
        super().__init__(block_tokens, **options)
        self.fault: Callable[[BlockMove], str] = lambda move: ""
        self.host: dict[tuple[int, int], bytes] = {}
        self.moved = {"copy_out": 0, "copy_in": 0, "save": 0, "load": 0}
        self.slots_used: set[int] = set()

    def execute(self, plan: StepPlan) -> StepResult:
        results = [self._move(move) for move in plan.moves]
        kinds = [move.kind in ("copy_out", "save") for move in plan.moves]
        assert kinds == sorted(kinds, reverse=True), "a block is filled before others are read"
        return dataclasses.replace(super().execute(plan), moved=tuple(results))

    def _move(self, move: BlockMove) -> MoveResult:
        fault = self.fault(move)
        if fault in ("fail", "late"):
            return MoveResult(error=f"planned: {fault}")
        if move.kind in ("copy_out", "save"):
            return self._out(move, fault)
        return self._in(move, fault)

    def _out(self, move: BlockMove, fault: str) -> MoveResult:
        assert self._generations[move.group][move.block] == move.generation, "a stale block is read"
        raw = self._encode(move.group, self._stores[move.group][move.block])
        kept = _harm(raw, fault)
        if move.kind == "copy_out":
            self.host[move.group, move.slot] = kept
            self.slots_used.add(move.slot)
        else:
            with Path(move.path).open("ab") as file:
                assert file.tell() == move.slot * len(raw), "blocks are saved in order"
                file.write(kept)
        self.moved[move.kind] += 1
        return MoveResult(len(raw), zlib.crc32(raw))

    def _in(self, move: BlockMove, fault: str) -> MoveResult:
        assert self._generations[move.group][move.block] < move.generation, "a block in use is filled"
        size = fake.BYTES_PER_TOKEN[move.group] * self.block_tokens
        try:
            raw = self.host[move.group, move.slot] if move.kind == "copy_in" else self._read(move, size)
        except OSError as error:
            return MoveResult(error=str(error))
        raw = _harm(raw, fault)
        if zlib.crc32(raw) != move.checksum or len(raw) != size:
            return MoveResult(error="damaged")
        self._generations[move.group][move.block] = move.generation
        self._stores[move.group][move.block] = self._decode(move.group, raw)
        self.moved[move.kind] += 1
        return MoveResult(len(raw), zlib.crc32(raw))

    def _read(self, move: BlockMove, size: int) -> bytes:
        with Path(move.path).open("rb") as file:
            file.seek(move.slot * size)
            return file.read(size)

    def _encode(self, group: int, tokens: list[int | None]) -> bytes:
        width = fake.BYTES_PER_TOKEN[group]
        return b"".join((0 if t is None else t + 1).to_bytes(width, "little") for t in tokens)

    def _decode(self, group: int, raw: bytes) -> list[int | None]:
        width = fake.BYTES_PER_TOKEN[group]
        numbers = [int.from_bytes(raw[i : i + width], "little") for i in range(0, len(raw), width)]
        return [None if number == 0 else number - 1 for number in numbers]


def make_engine(config: EngineConfig, **options: Any) -> Any:
    """An engine on a MovingRunner (reachable as `engine.fake`)."""
    return fake.make_engine(config, MovingRunner(config.kv_cache.block_tokens, **options))


def _harm(raw: bytes, fault: str) -> bytes:
    if fault == "short":
        return raw[: len(raw) // 2]
    return bytes([raw[0] ^ 1]) + raw[1:] if fault == "flip" else raw
