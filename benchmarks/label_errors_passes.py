"""The list of `find_label_errors` on features read in passes, against the list on the same features at once.

    python -m benchmarks.label_errors_passes fashion-mnist FEATURES [--samples 20000] [--pilot 8192] [--noise next:0.4]

Each argument is a named data set, whose pixels are the features, or a folder of shards with labels, as `selfadapt
embed` writes. --pilot is the number of samples of the pilot, as for larger data. The types of noise are those of
label_error_cells.py. Prints average precision and CPU seconds for each mode, seed 0 with one thread.
"""

import argparse
import time
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.grid import table
from benchmarks.label_error_cells import with_errors
from selfadapt import find_label_errors
from selfadapt.data.inputs import TensorInputs
from selfadapt.data.shards.feature_shards import FeatureShards
from selfadapt.data.sources.catalog import open_data
from selfadapt.evaluation.label_errors import large_features
from selfadapt.evaluation.label_errors.checked_input import coded_labels
from selfadapt.evaluation.label_errors.recovery import average_precision
from selfadapt.objectives.cross_fitting.streamed import streamed_fit

MODES = {"in passes": True, "at once": False}


def read(source: str, samples: int) -> tuple[Tensor, Tensor]:
    """The features and true labels of the first samples."""
    if Path(source).is_dir():
        shards = FeatureShards.of(source)
        given = shards.column("labels")
        assert given is not None
        labels_N = coded_labels(given, None, None)[1]
        return shards.read(slice(0, min(samples, len(shards)))), labels_N[:samples]
    train = open_data(source).train
    assert isinstance(train.inputs, TensorInputs)
    return train.inputs.values[:samples].flatten(1).float() / 255, train.labels[:samples]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--pilot", type=int, default=streamed_fit.SAMPLE)
    parser.add_argument("--noise", nargs="+", default=["symmetric:0.2", "next:0.4", "confusion:0.05"])
    chosen = parser.parse_args()
    lines = []
    for source in chosen.sources:
        features_NF, truth_N = read(source, chosen.samples)
        for noise in chosen.noise:
            labels_N = with_errors(features_NF, truth_N, noise, seed=0)
            cells = [source, str(len(labels_N)), noise]
            for streamed in MODES.values():
                start = time.process_time()
                with (
                    patch("selfadapt.label_errors.is_streamed", lambda *_, streamed=streamed: streamed),
                    patch.object(large_features, "sample_size", lambda *_: chosen.pilot),
                ):
                    ranked_N = find_label_errors(labels_N.numpy(), features=features_NF.numpy()).ranked_indices
                seconds = time.process_time() - start
                quality = average_precision(torch.from_numpy(ranked_N.copy()), labels_N != truth_N)
                cells += [f"{quality:.4f}", f"{seconds:.0f}"]
            lines.append(cells)
            print(*cells, flush=True)
    columns = [part for mode in MODES for part in (mode, "CPU seconds")]
    print("\n".join(table(["features", "samples", "label errors", *columns], lines)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
