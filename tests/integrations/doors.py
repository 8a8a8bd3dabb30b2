"""The digits problem through every door, with self-adaptive targets and without: each returns the test accuracy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from integrations.digits_problem import BATCH, EPOCHS, Digits, Named, digits, network, optimizer_of, test_accuracy
from selfadapt import LabelErrorReport, SelfAdaptiveLoss, with_index

Result = tuple[float, LabelErrorReport | None]


def _loader(data: Digits, seed: int, adaptive: bool) -> DataLoader[Any]:
    dataset = with_index(data.training_set) if adaptive else data.training_set
    return DataLoader(dataset, BATCH, shuffle=True, generator=torch.Generator().manual_seed(seed))


def own_loop(seed: int, adaptive: bool, folder: Path) -> Result:
    data, model = digits(seed), network(seed)
    optimizer, loader = optimizer_of(model), _loader(data, seed, adaptive)
    criterion = SelfAdaptiveLoss(data.labels, epochs=EPOCHS)
    for _ in range(EPOCHS):
        for images, labels, *index in loader:
            logits = model(images)
            loss = criterion(logits, index[0]) if adaptive else cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if adaptive:
            criterion.end_epoch()
    return test_accuracy(model, data), criterion.label_errors() if adaptive else None


def accelerate(seed: int, adaptive: bool, folder: Path) -> Result:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    data, model = digits(seed), network(seed)
    model, optimizer, loader = accelerator.prepare(model, optimizer_of(model), _loader(data, seed, adaptive))
    criterion = SelfAdaptiveLoss(data.labels, epochs=EPOCHS)
    for _ in range(EPOCHS):
        for images, labels, *index in loader:
            logits = model(images)
            loss = criterion(logits, index[0]) if adaptive else cross_entropy(logits, labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        if adaptive:
            criterion.end_epoch()
    return test_accuracy(model, data), criterion.label_errors() if adaptive else None


def lightning(seed: int, adaptive: bool, folder: Path) -> Result:
    from integrations.lightning_module import DigitsModule, trainer
    from selfadapt.integrations.lightning_callback import SelfAdaptiveCallback

    data, module = digits(seed), DigitsModule(seed)
    callback = SelfAdaptiveCallback(data.labels)
    trainer(folder, callbacks=[callback] if adaptive else []).fit(module, _loader(data, seed, adaptive))
    return test_accuracy(module, data), callback.label_errors() if adaptive else None


def transformers(seed: int, adaptive: bool, folder: Path) -> Result:
    from transformers import Trainer

    from integrations.trainer_arguments import arguments
    from selfadapt.integrations.transformers_trainer import SelfAdaptiveTrainer

    data = digits(seed)
    items = [{"pixels": image, "labels": int(label)} for image, label in zip(data.images, data.labels, strict=True)]
    model = Named(network(seed))
    optimizer = optimizer_of(model)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    given: dict[str, Any] = {
        "model": model,
        "args": arguments(folder, seed=seed),
        "train_dataset": items,
        "optimizers": (optimizer, constant),
    }
    trainer = SelfAdaptiveTrainer(**given, labels=data.labels) if adaptive else Trainer(**given)
    trainer.train()
    return test_accuracy(model.net, data), trainer.label_errors() if adaptive else None


DOORS: dict[str, Callable[[int, bool, Path], Result]] = {
    "own loop": own_loop,
    "accelerate": accelerate,
    "lightning": lightning,
    "transformers": transformers,
}
