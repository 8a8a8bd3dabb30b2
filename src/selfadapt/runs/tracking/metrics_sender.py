"""Sending the metrics of a run to experiment trackers while it trains.

metrics.jsonl is the source, and tracking.json records how many of its lines each tracker has received. So a resumed run
continues the same run of the tracker and sends what an interruption left unsent. A tracker that fails, for example
without a network, gives a warning and is left out; training goes on.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from selfadapt.run_folder.contents import Tracked
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.plan import Plan
from selfadapt.runs.tracking.trackers import TRACKERS, Tracker
from selfadapt.runs.train.bench import Stage, StageCallback


class MetricsSender:
    """Sends new lines of metrics.jsonl to trackers. Without trackers it does nothing."""

    def __init__(self, folder: RunFolder, plan: Plan, names: Sequence[str]) -> None:
        self._folder, self._seen = folder, -1
        stored = folder.read_json(folder.tracking_file, dict[str, Tracked]) if names else None
        self._state: dict[str, Tracked] = stored or {}
        self._trackers: dict[str, Tracker] = {}
        for name in names:
            known = self._state.setdefault(name, {"sent": 0, "run_id": None})
            try:
                self._trackers[name] = TRACKERS[name](folder.path, plan.values(), known["run_id"])
                known["run_id"] = self._trackers[name].run_id
            except Exception as error:
                _warn(name, error)
        self._save()

    def sending(self, on_stage: StageCallback) -> StageCallback:
        """The callback, which also sends what was written since its last call."""
        if not self._trackers:
            return on_stage

        def stage(own: Stage) -> None:
            on_stage(own)
            self.send()

        return stage

    def send(self) -> None:
        """Send the lines that a tracker has not received."""
        path = self._folder.metrics_file
        size = path.stat().st_size if self._trackers and path.exists() else -1
        if size == self._seen:
            return
        self._seen = size
        records = self._folder.read_metrics()
        for name, tracker in list(self._trackers.items()):
            for number, record in enumerate(records[self._state[name]["sent"] :], start=self._state[name]["sent"] + 1):
                try:
                    tracker.log(_numbers(record), int(record.get("epoch", number)))
                except Exception as error:
                    _warn(name, error)
                    del self._trackers[name]
                    break
                self._state[name]["sent"] = number
        self._save()

    def finish(self, result: Mapping[str, Any]) -> None:
        """Send the rest and the result, and close the trackers."""
        self.send()
        for name, tracker in self._trackers.items():
            try:
                tracker.finish(_numbers(result))
            except Exception as error:
                _warn(name, error)

    def _save(self) -> None:
        if self._trackers:
            self._folder.write_json(self._folder.tracking_file, self._state)


def _numbers(record: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "epoch"
    }


def _warn(name: str, error: Exception) -> None:
    lines = str(error).splitlines()
    reason = lines[0] if lines else type(error).__name__
    warnings.warn(f"{name} does not receive the metrics: {reason}; they are in metrics.jsonl", stacklevel=3)
