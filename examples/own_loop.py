"""Self-adaptive training in your own loop: one object computes the loss and finds the label errors.

Run it with `python examples/own_loop.py`. It trains a small network on digits, a third of them mislabelled.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from selfadapt import SelfAdaptiveLoss

EPOCHS = 40


def main() -> float:
    torch.manual_seed(0)
    bunch = load_digits()
    images = torch.tensor(bunch.data, dtype=torch.float32) / 16
    truth = torch.tensor(bunch.target)
    train = torch.randperm(len(truth)) < 1400
    images_train, truth_train = images[train], truth[train]
    wrong = torch.rand(len(truth_train)) < 0.4
    labels = torch.where(wrong, torch.randint(10, truth_train.shape), truth_train)

    model = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-3)
    criterion = SelfAdaptiveLoss(labels, epochs=EPOCHS)

    for _ in range(EPOCHS):
        for index in torch.randperm(len(labels)).split(100):
            loss = criterion(model(images_train[index]), index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        criterion.end_epoch()

    model.eval()
    recovered = torch.from_numpy(criterion.label_errors().suggested_labels)
    accuracy = float((model(images[~train]).argmax(1) == truth[~train]).float().mean())
    print(f"correct labels:        {(labels == truth_train).float().mean():.1%} as given")
    print(f"                       {(recovered == truth_train).float().mean():.1%} as recovered")
    print(f"targets moved after:   {criterion.started} epochs")
    print(f"test accuracy:         {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    main()
