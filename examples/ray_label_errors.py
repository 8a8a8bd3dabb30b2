"""Label errors on a Ray cluster: features and their sums stay where the data are, and predictions come back.

    pip install 'selfadapt[ray]'
    python examples/ray_label_errors.py

Each task adds up a block of features by fold and class. A head for each fold follows from the sums of the others, so no
sample is predicted by a head that has seen its label. Replace `rows` and `Embed` by your data and your network.

Shapes: N samples, B of a block, F features, K classes.
"""

from typing import Any

import numpy as np
import ray
import torch
from sklearn.datasets import load_digits

from selfadapt import LabelErrorReport, find_label_errors
from selfadapt.data.shards.id_order import id_hashes
from selfadapt.models.linear.fold_moments import FoldMoments, scores

Block = dict[str, Any]  # arrays by column
FOLDS, CLASSES, SHRINKAGE = 5, 10, 0.1
SUMS = ("counts_FK", "sums_FKD", "gram_FDD")


def rows() -> ray.data.Dataset:
    """Digits, of which a tenth has the label of the next class."""
    digits = load_digits()
    labels = np.where(np.random.default_rng(0).random(len(digits.target)) < 0.1, digits.target + 1, digits.target) % 10
    images = digits.images.astype(np.float32)
    return ray.data.from_items([{"id": f"digit-{i}", "image": images[i], "label": y} for i, y in enumerate(labels)])


class Embed:
    """A network, loaded once by each actor."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU())

    @torch.inference_mode()
    def __call__(self, block: Block) -> Block:
        features_BF = self.network(torch.from_numpy(np.stack(block["image"])) / 16).numpy()
        return {"id": block["id"], "label": block["label"], "features": features_BF}


def folds(block: Block) -> torch.Tensor:
    """The fold of a sample depends on its id alone."""
    return id_hashes(block["id"].tolist(), len(block["id"]), seed=0) % FOLDS


def sums(block: Block) -> Block:
    features_BF = torch.from_numpy(np.stack(block["features"]))
    moments = FoldMoments.zero(FOLDS, CLASSES, features_BF.shape[1])
    moments.add(features_BF, torch.from_numpy(block["label"].astype(np.int64)), folds(block))
    return {name: getattr(moments, name).numpy()[None] for name in SUMS}


def predict(block: Block, heads: list[torch.Tensor]) -> Block:
    features_BF, fold_B = torch.from_numpy(np.stack(block["features"])), folds(block)
    p_FBK = torch.stack([scores(features_BF, head_FK).softmax(1) for head_FK in heads])
    return {"id": block["id"], "label": block["label"], "p": p_FBK[fold_B, torch.arange(len(fold_B))].numpy()}


def main() -> LabelErrorReport:
    features = rows().map_batches(Embed, compute=ray.data.ActorPoolStrategy(size=1)).materialize()
    of_blocks = features.map_batches(sums, batch_size=512).take_all()
    total = FoldMoments(*(torch.from_numpy(sum(own[name] for own in of_blocks)) for name in SUMS))
    heads = [total.discriminant_without([fold]).head(SHRINKAGE) for fold in range(FOLDS)]
    found = features.map_batches(predict, fn_args=[heads]).take_all()
    labels, p_NK, ids = ([own[name] for own in found] for name in ("label", "p", "id"))
    return find_label_errors(labels, pred_probs=np.stack(p_NK), ids=ids)


if __name__ == "__main__":
    ray.init(num_cpus=2)
    print(main().summary)
