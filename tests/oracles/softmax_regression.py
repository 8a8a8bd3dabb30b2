"""Self-adaptive training of a linear classifier, written out in numpy from the paper's Algorithm 2.

It shares nothing with the package: float64, one sample after the other, gradients by hand.
"""

from dataclasses import dataclass

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass
class Oracle:
    weight: Array  # K×D
    bias: Array  # K
    targets: Array  # N×K
    alpha: float
    start_epoch: int
    reweight: bool

    def __post_init__(self) -> None:
        self.velocity = [np.zeros_like(self.weight), np.zeros_like(self.bias)]

    def step(self, inputs: Array, index: list[int], epoch: int, lr: float, momentum: float) -> float:
        """One step of SGD on the samples of this batch; returns the loss."""
        probabilities, weights = {}, {}
        for i in index:
            scores = self.weight @ inputs[i] + self.bias
            powers = np.exp(scores - scores.max())
            probabilities[i] = powers / powers.sum()
            if epoch + 1 > self.start_epoch:
                self.targets[i] = self.alpha * self.targets[i] + (1 - self.alpha) * probabilities[i]
            weights[i] = self.targets[i].max() if self.reweight else 1.0
        whole = sum(weights.values())
        loss = -sum(weights[i] * (self.targets[i] * np.log(probabilities[i])).sum() for i in index) / whole
        slope = [np.zeros_like(self.weight), np.zeros_like(self.bias)]
        for i in index:
            error = weights[i] * (probabilities[i] * self.targets[i].sum() - self.targets[i]) / whole
            slope[0] += np.outer(error, inputs[i])
            slope[1] += error
        for position, parameter in enumerate((self.weight, self.bias)):
            self.velocity[position] = momentum * self.velocity[position] + slope[position]
            parameter -= lr * self.velocity[position]
        return float(loss)
