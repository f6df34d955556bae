"""A whole comparison: cases by repeats by contestants in turn, the reference, the floors, and its document."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.peers import cells, environments, floors, machine, table, workloads
from benchmarks.peers.cells import Contestant, Setting
from benchmarks.peers.table import Runs

SCHEMA = "counterproof-peers/1"
REFERENCE = Contestant("reference", "transformers fp32", "transformers")


@dataclass(slots=True)
class Comparison:
    """One comparison. `folder` keeps a file a cell; `say` gets progress lines, `show` finished tables.

    Order: for each (workload, dtype) case, for each repeat, every contestant once and the floors, so that a
    disturbance of some seconds meets neighbours and not one contestant's every run.
    """

    setting: Setting
    contestants: list[Contestant]
    cases: list[tuple[str, str]]
    data: dict[str, Any]
    repeats: int
    folder: Path
    say: Callable[[str], None]
    show: Callable[[str], None]
    given_up: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Run what is not there yet and return the document. A contestant that fails is noted, not fatal."""
        found = []
        rates: list[floors.Rates] = []
        for workload, dtype in self.cases:
            references = self.references(workload)
            runs: Runs = {contestant.name: {} for contestant in self._taking_part(workload)}
            for repeat in range(self.repeats):
                self._round(workload, dtype, repeat, runs, rates)
                summary = self._case(workload, dtype, runs, references, rates)
                self.show(table.markdown(summary, self._titles()))
            found.append(summary)
        return self._document(found)

    def _round(self, workload: str, dtype: str, repeat: int, runs: Runs, rates: list[floors.Rates]) -> None:
        rate = self._rates(f"{workload}-{dtype}-{repeat}")
        if rate is not None:
            rates.append(rate)
        for contestant in self._taking_part(workload):
            answer = self._cell(workload, dtype, contestant, repeat)
            runs[contestant.name][repeat] = answer
            self.say(f"{workload} {dtype} {repeat + 1}/{self.repeats} {contestant.title:22} {_brief(answer)}")

    def _taking_part(self, workload: str) -> list[Contestant]:
        return [one for one in self.contestants if not one.only or workload in one.only]

    def _cell(self, workload: str, dtype: str, contestant: Contestant, repeat: int) -> dict[str, Any]:
        if (known := self.given_up.get((workload, dtype, contestant.name))) is not None:
            return known
        case = workloads.case(self.data, workload, repeat)
        record = environments.read_record(self.setting.root, contestant.peer)
        identity = self._identity(contestant, dtype, case.sha256()) | {"repeat": repeat, "workload": workload}
        name = f"{workload}-{dtype}-{contestant.name}-{repeat}"
        cell = cells.kept(self.folder, name, identity)
        if cell is None:
            job = cells.task(case, dtype, contestant, self.setting, record)
            cell = cells.keep(self.folder, name, identity, cells.run(job, contestant, self.setting))
        answer: dict[str, Any] = cell["answer"]
        if "unsupported" in answer or ("failed" in answer and repeat == 0):
            self.given_up[(workload, dtype, contestant.name)] = answer
        return answer

    def _identity(self, contestant: Contestant, dtype: str, sha256: str) -> dict[str, Any]:
        record = environments.read_record(self.setting.root, contestant.peer)
        # ours changes without another requirement: cells of another commit are not taken up again
        code = machine.code(cells.REPOSITORY) if contestant.peer == "intaglio" else {}
        return {
            "contestant": contestant.name,
            "code": code,
            "options": contestant.options,
            "requirements": record.requirements if record else [],
            "dtype": dtype,
            "case_sha256": sha256,
            "model": self.setting.model.name,
            "threads": self.setting.threads,
            "wait_policy": self.setting.wait_policy,
        }

    def _rates(self, name: str) -> floors.Rates | None:
        identity = {"threads": self.setting.threads, "wait_policy": self.setting.wait_policy}
        cell = cells.kept(self.folder, f"floors-{name}", identity)
        if cell is None:
            cell = cells.keep(self.folder, f"floors-{name}", identity, cells.run_floors(self.setting))
        answer = cell["answer"]
        if "failed" in answer:
            self.say(f"floors: {answer['failed']}")
            return None
        return floors.Rates(answer["read_gb_s"], answer["matmul_gflop_s"])

    def references(self, workload: str) -> dict[int, list[list[int]]]:
        """transformers' fp32 tokens by repeat, one prompt at a time (no padding); kept across comparisons."""
        if environments.read_record(self.setting.root, "transformers") is None:
            return {}
        found: dict[int, list[list[int]]] = {}
        for repeat in range(self.repeats):
            case = workloads.case(self.data, workload, repeat)
            identity = self._identity(REFERENCE, "fp32", case.sha256())
            del identity["wait_policy"]  # which changes times, not tokens
            name = f"{workload.removesuffix('-nocache')}-{case.sha256()[:16]}"
            folder = self.setting.root / "references"
            cell = cells.kept(folder, name, identity)
            if cell is None:
                self.say(f"{workload} reference tokens for repeat {repeat + 1} ...")
                job = cells.task(case, "fp32", REFERENCE, self.setting, None)
                single = [[prompt] for prompt in case.batch]
                job = dataclasses.replace(job, batches=single, warm=[], cache=True, prefix_cache=False)
                cell = cells.keep(folder, name, identity, cells.run(job, REFERENCE, self.setting))
            if "batches" in cell["answer"]:
                found[repeat] = [batch["requests"][0]["tokens"] for batch in cell["answer"]["batches"]]
        return found

    def _case(
        self,
        workload: str,
        dtype: str,
        runs: Runs,
        references: dict[int, list[list[int]]],
        rates: list[floors.Rates],
    ) -> dict[str, Any]:
        summary = table.summarise(runs, references)
        taking_part = self._taking_part(workload)
        own = [contestant.name for contestant in taking_part if contestant.peer == "intaglio"]
        keys = table.RATIOS[workload]
        return {
            "workload": workload,
            "dtype": dtype,
            "title": workloads.title(workloads.case(self.data, workload, 0)),
            "contestants": summary,
            "own": own,
            "ratio_metrics": list(keys),
            "ratios": table.ratios(summary, own, keys),
            "floor": self._floor(workload, dtype, rates),
            "rates": _best_rates(rates),
        }

    def _floor(self, workload: str, dtype: str, rates: list[floors.Rates]) -> dict[str, float] | None:
        """From the highest rates so far; a quantised format's weights are those of its file."""
        if not rates:
            return None
        size = None
        if dtype not in floors.BYTES:
            record = environments.read_record(self.setting.root, "llamacpp")
            if record is None or dtype not in record.prepared:
                return None
            size = float((self.setting.root / record.prepared[dtype]).stat().st_size)
        shape = floors.read_shape(self.setting.model)
        case = workloads.case(self.data, workload, 0)
        found = floors.floor(case, shape, dtype, floors.best(rates), size)
        return found | {"tokens_per_s": len(case.batch) * case.new / found["wall_ms"] * 1e3}

    def _titles(self) -> dict[str, str]:
        return {contestant.name: contestant.title for contestant in self.contestants}

    def _document(self, found: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "utc": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.facts(),
            "code": machine.code(cells.REPOSITORY),
            "model": self.setting.model.name,
            "threads": self.setting.threads,
            "wait_policy": self.setting.wait_policy,
            "repeats": self.repeats,
            "workloads_sha256": hashlib.sha256(json.dumps(self.data, sort_keys=True).encode()).hexdigest(),
            "load_average": self._load_averages(),
            "titles": self._titles(),
            "cases": found,
        }

    def _load_averages(self) -> dict[str, float]:
        """Of the last minute at the end of each cell: how quiet the machine was (one busy run gives its threads)."""
        values = [
            json.loads(path.read_text(encoding="utf-8"))["load_average"]
            for path in self.folder.glob("*.json")
        ]
        return {"median": statistics.median(values), "most": max(values)} if values else {}


def _best_rates(rates: list[floors.Rates]) -> dict[str, float]:
    if not rates:
        return {}
    best = floors.best(rates)
    found = {"memory read GB/s": best.read_gb_s}
    return found | {f"matmul {name} GFLOP/s": rate for name, rate in best.matmul_gflop_s.items()}


def _brief(answer: dict[str, Any]) -> str:
    if "batches" not in answer:
        return answer.get("unsupported") or f"FAILED: {answer.get('failed')}"
    found = table.measures(answer)
    tpot = f", TPOT {found['tpot_ms']:.2f}" if "tpot_ms" in found else ""
    return (
        f"TTFT {found['ttft_ms']:.1f}{tpot}, all {found['wall_ms']:.0f} ms, {found['tokens_per_s']:.1f} tokens/s, "
        f"{found['peak_rss_mib']:.0f} MiB ({answer['process_s']:.0f} s)"
    )
