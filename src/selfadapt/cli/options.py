"""The options that decide a run, in one place for every command that trains."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

_RENAMED = {"compile_model": "compile"}  # options whose setting has a name of its own


def _option(kind: Any, words: str, *names: str) -> tuple[Any, Any]:
    return kind | None, typer.Option(None, *names, help=words)


RUN_OPTIONS = {
    "labels": _option(Path, "Training labels from a .npy or .csv; the data's own count as the truth."),
    "noise": _option(
        str,
        "KIND:RATE, noise to put in: symmetric, symmetric-other, asymmetric, instance, gaussian, random-pixels or "
        "shuffled-pixels; or matrix:FILE.",
    ),
    "seed": _option(int, "Decides every random number. Default: 0."),
    "epochs": _option(int, "Default: 60."),
    "batch_size": _option(int, "Default: 256, or 64 below 5,000 samples."),
    "pieces": _option(int, "Forward a batch in so many pieces, to save memory. Default: 1."),
    "optimizer": _option(str, "sgd, adam, adamw or lars. Default: sgd."),
    "lr": _option(float, "Learning rate, at its largest. Default: 0.1."),
    "weight_decay": _option(float, "Default: 0.0005, or 0.005 below 5,000 samples."),
    "warmup_epochs": _option(float, "Epochs in which the learning rate grows from 0. Default: 0."),
    "schedule": _option(
        str,
        "How the learning rate falls: cosine, constant, halve:25 (every 25 epochs) or tenth:75,90. Default: cosine.",
    ),
    "momentum": _option(float, "Momentum of the targets (alpha). Default: 0.9; 0.99 for selective."),
    "start_epoch": _option(
        str, "Epochs before the targets move (E_s), or auto: found while training. Default: auto; 0 for selective."
    ),
    "noise_rate": _option(float, "For co-teaching: the share of wrong labels. Default: the true one, or 0.2."),
    "reward": _option(float, "For deep-gamblers: what a right answer pays (o). Default: 2.2."),
    "coverage": _option(float, "For selective-net: the coverage to train for. Default: 0.8."),
    "targets": _option(
        str, "How targets are kept: float32, float16, file, topk:K or int8; sharded:… to share. Default: float32."
    ),
    "model": _option(
        str, "resnet-small, resnet18, resnet34, resnet50, resnet101, vgg16 or mlp. Default: resnet-small."
    ),
    "width": _option(int, "Width of the model's first stage. Default: the model's own."),
    "dropout": _option(float, "The share of features that training leaves out before the last layer. Default: 0."),
    "image_size": _option(int, "Bring image files to a square of this size."),
    "augment": _option(
        str,
        "none, crop, crop-flip, resized-crop, self-supervised or self-supervised-blur. Default: what suits the data.",
    ),
    "validation": _option(
        float,
        "The share of each class that is held out to watch training, if the data bring no such part. Default: 0.1.",
    ),
    "pretrained": _option(Path, "Begin with the network of this run of `selfadapt pretrain`, of the same model."),
    "label_share": _option(float, "Learn from this share of each class only, such as 0.01."),
    "stream": _option(bool, "Decode image files on demand instead of keeping a decoded copy.", "--stream"),
    "device": _option(str, "auto, cpu, cuda, mps. Default: auto."),
    "precision": _option(str, "float32, bfloat16 or float16. Default: float32."),
    "compile_model": _option(bool, "Compile the model with torch.compile.", "--compile"),
    "limit": _option(
        int,
        "Use so many training samples: the first of a named set, of your own a seeded share of each class.",
    ),
    "test_limit": _option(int, "Use so many test samples, chosen likewise."),
}
PRETRAINING_OPTIONS = {
    "views": _option(int, "Augmented views of an image in a step, 1 or 2. Default: 1."),
    "seed": RUN_OPTIONS["seed"],
    "epochs": _option(int, "Default: 100."),
    "batch_size": _option(int, "Default: 512, or 128 below 50,000 images."),
    "optimizer": RUN_OPTIONS["optimizer"],
    "lr": _option(float, "Learning rate; follows a cosine to zero. Default: 0.1."),
    "weight_decay": _option(float, "Default: 0.00005."),
    "warmup_epochs": _option(float, "Default: 30 of 800 epochs, in proportion."),
    "momentum": _option(str, "Of the targets (alpha); 0.5:0.8 grows. Default: 0.7."),
    "beta": _option(str, "Of the slow copy; 0.99:1 grows, 0 is no copy. Default: 0.99."),
    "predictor": _option(bool, "Default: what the method has.", "--predictor/--no-predictor"),
    "hidden": _option(int, "Width of the hidden layer of projector and predictor. Default: 4096."),
    "dimensions": _option(int, "Of a projection and a target. Default: 256."),
    "queue": _option(int, "For moco: keys that wait. Default: 4096, or an eighth of the images if that is less."),
    "targets": _option(str, "float32, float16, int8 or file; sharded:… to share. Default: float32."),
    "model": _option(str, "resnet18, resnet50, alexnet, resnet-small, … Default: resnet18."),
    "augment": _option(str, "Default: self-supervised; self-supervised-blur suits large images."),
    **{
        name: RUN_OPTIONS[name]
        for name in ("width", "image_size", "stream", "device", "precision", "compile_model", "limit", "test_limit")
    },
}

Options = Mapping[str, tuple[Any, Any]]


def with_options(options: Options) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options. It gets those that the user gave as `given`, by the names of settings."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def wrapped(**values: Any) -> None:
            given = {
                _RENAMED.get(name, name): str(value) if isinstance(value, Path) else value
                for name in options
                if (value := values.pop(name)) is not None
            }
            command(**values, given=given)

        own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "given"]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + shared
        wrapped.__doc__ = command.__doc__
        wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return wrapped

    return decorate
