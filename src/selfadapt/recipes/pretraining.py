"""Learning without labels, from data to the finished run folder."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import Any, cast, get_args

import torch
from torch import Tensor

from selfadapt import processes
from selfadapt.data.augment import named_augment
from selfadapt.data.decoded import Watch
from selfadapt.data.images import Shape
from selfadapt.data.loader import SampleLoader
from selfadapt.data.samples import Data, Samples, channel_statistics
from selfadapt.engine import checkpoint
from selfadapt.engine.fit import FitSettings, Precision, Training, fit
from selfadapt.engine.optim import OptimizerName, OptimizerSettings, learning_rate
from selfadapt.errors import UserError
from selfadapt.evaluation.accuracy import accuracy, outputs
from selfadapt.evaluation.probe import collapsed, effective_rank, spread
from selfadapt.models.heads import Backbone, Normalised, unwrapped
from selfadapt.models.named import backbone
from selfadapt.objectives.objective import Figures
from selfadapt.objectives.pretraining.byol import BYOL
from selfadapt.objectives.pretraining.encoders import Encoders, Pretraining, Ramp
from selfadapt.objectives.pretraining.moco import MoCo
from selfadapt.objectives.pretraining.self_supervised import FixedNoise, RandomNetwork, SelfSupervised
from selfadapt.objectives.pretraining.simclr import SimCLR
from selfadapt.objectives.pretraining.simsiam import SimSiam
from selfadapt.recipes.prepare import open_for, recall, sample_rows
from selfadapt.recipes.settings import SMALL_SET, choose_device, normal_form, option
from selfadapt.recipes.surroundings import described, repeatable, take_surroundings
from selfadapt.report.page import write_pretraining_page
from selfadapt.report.results import RunFolder
from selfadapt.targets.store import Storage

METHODS: dict[str, tuple[str, type[Pretraining]]] = {
    "sat": ("self-adaptive training without labels", SelfSupervised),
    "byol": ("BYOL", BYOL),
    "moco": ("MoCo v2", MoCo),
    "simclr": ("SimCLR", SimCLR),
    "simsiam": ("SimSiam", SimSiam),
    "noise": ("fitting fixed noise", FixedNoise),
    "random-network": ("fitting a random network", RandomNetwork),
}
_WATCHED = 2_000  # images whose features are looked at after each epoch
_PROBE_LR_OF_ADAM = 1e-3
_WARM_UP = 30 / 800  # of the epochs, as in the paper


@dataclass(frozen=True, kw_only=True)
class PretrainingSettings:
    """Everything that decides the outcome of a run without labels. What is None is chosen by `resolved`."""

    data: str
    method: str = "sat"
    views: int = 1
    seed: int = 0
    epochs: int = 100
    batch_size: int | None = None
    optimizer: OptimizerName = "sgd"
    lr: float = 0.1
    weight_decay: float = 5e-5
    warmup_epochs: float | None = None
    momentum: str = "0.7"
    beta: str | None = None
    predictor: bool | None = None
    hidden: int = 4096
    dimensions: int = 256
    targets: str = "float32"
    model: str = "resnet18"
    width: int | None = None
    image_size: int | None = None
    augment: str = "self-supervised"
    stream: bool = False
    device: str = "auto"
    precision: Precision = "float32"
    compile: bool = False
    limit: int | None = None
    test_limit: int | None = None

    noise = None  # none can be put in: there are no labels to make wrong

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "hidden", "dimensions", "image_size", "limit", "test_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{option(name)} {value} must be at least 1")
        choices = {"method": tuple(METHODS), "optimizer": get_args(OptimizerName), "precision": get_args(Precision)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(
                    f"{option(name)} {getattr(self, name)!r} is not known; choose one of {', '.join(known)}"
                )
        if self.views not in (1, 2):
            raise UserError(f"--views {self.views} must be 1 or 2")
        if self.method == "simclr" and self.views == 1:
            raise UserError("--method simclr contrasts two views of an image; add --views 2")
        for name, least in (("lr", 1e-12), ("weight_decay", 0), ("warmup_epochs", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise UserError(f"{option(name)} {value} must be a number {'above' if least else 'from'} 0")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"--seed {self.seed} must be a whole number from 0 on, of 63 bits")
        if self.predictor is not None and self.method in ("moco", "simclr"):
            raise UserError(f"--method {self.method} has no predictor to switch on or off")
        if self.beta is not None and self.method in ("simclr", "simsiam", "noise", "random-network"):
            raise UserError(f"--method {self.method} has no slow copy of the network, so --beta means nothing to it")
        parse_ramp("--momentum", self.momentum)
        if self.beta is not None:
            parse_ramp("--beta", self.beta)
        if self.method == "moco" and self.beta is not None and not parse_ramp("--beta", self.beta).end:
            raise UserError("--method moco needs a slow copy of the network; give a --beta above 0")

    @classmethod
    def given(cls, **settings: Any) -> "PretrainingSettings":
        return cls(**normal_form(settings))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "PretrainingSettings":
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise UserError(f"this is no run of `selfadapt pretrain`: it has the settings {', '.join(unknown)}")
        return cls(**content)

    def resolved(self, data: Data) -> "PretrainingSettings":
        return replace(
            self,
            batch_size=self.batch_size or (512 if len(data.train) >= 10 * SMALL_SET else 128),
            warmup_epochs=round(_WARM_UP * self.epochs, 3) if self.warmup_epochs is None else self.warmup_epochs,
            device=choose_device(self.device).type if self.device == "auto" else self.device,
        )

    def objective(self) -> Pretraining:
        kind = METHODS[self.method][1]
        chosen: dict[str, Any] = {"hidden": self.hidden, "dimensions": self.dimensions, "lr": self.lr}
        if self.optimizer in ("adam", "adamw"):
            chosen["probe_lr"] = _PROBE_LR_OF_ADAM
        if self.beta is not None:
            chosen["beta"] = parse_ramp("--beta", self.beta)
        if self.predictor is not None:
            chosen["predictor"] = self.predictor
        if kind is SelfSupervised:
            chosen["alpha"] = parse_ramp("--momentum", self.momentum)
        if kind in (SelfSupervised, FixedNoise):
            chosen["seed"] = self.seed
        return kind(**chosen)

    def fit(self) -> FitSettings:
        assert self.warmup_epochs is not None
        optimizer = OptimizerSettings(
            name=self.optimizer, lr=self.lr, weight_decay=self.weight_decay, warmup_epochs=self.warmup_epochs
        )
        return FitSettings(epochs=self.epochs, optimizer=optimizer, precision=self.precision, compile=self.compile)


def parse_ramp(name: str, text: str) -> Ramp:
    """0.99, or 0.99:1.0 for a number that grows over training."""
    try:
        numbers = [float(number) for number in text.split(":")]
        if len(numbers) in (1, 2) and all(0 <= number <= 1 for number in numbers):
            return Ramp(numbers[0], numbers[-1])
    except ValueError:
        pass
    raise UserError(f"{name} {text!r} must be a number within 0..1, or two as START:END")


@dataclass(frozen=True)
class PretrainingRun:
    folder: RunFolder
    settings: PretrainingSettings
    data: Data
    training: Training


def _labelled(data: Data) -> bool:
    return data.num_classes > 1


def _prepared(data: Data) -> Data:
    """The data as training sees them: images that have no label instead of the labelled ones, if the data bring any."""
    if data.unlabelled is None:
        return data
    count = len(data.unlabelled)
    ids = [f"{data.name}/unlabelled/{i}" for i in range(count)]
    nothing = torch.zeros(count, dtype=torch.int64)
    train = Samples(images=data.unlabelled, labels=nothing, truth=None, ids=ids)
    return replace(data, train=train, validation=None, test=None, classes=("unlabelled",))


def start(settings: PretrainingSettings, folder: RunFolder, watch: Watch) -> PretrainingRun:
    data = _prepared(open_for(settings, watch, unlabelled=True)).limited(settings.limit, settings.test_limit)
    settings = settings.resolved(data)
    folder.create()
    processes.wait_for_all()
    try:
        training = _training(settings, data, folder)
    except UserError:
        folder.leave_if_empty()
        raise
    folder.write_samples(sample_rows(data))
    if data.unreadable:
        folder.write_unreadable(data.unreadable)
    processes.wait_for_all()
    content = {
        "settings": asdict(settings),
        "kind": "pretraining",
        "method": METHODS[settings.method][0],
        "seed": settings.seed,
        "start_epoch": None,
        "noise": None,
        "device": settings.device,
        **described(data),
        "parameters": sum(p.numel() for p in training.model.parameters() if p.requires_grad),
    }
    content["data"]["samples_sha256"] = folder.samples_sha256()
    folder.write_run(content)
    processes.wait_for_all()
    return PretrainingRun(folder, settings, data, training)


def reopen(folder: RunFolder, given: Mapping[str, Any], watch: Watch) -> PretrainingRun:
    """The run as its newest checkpoint has it; settings that are repeated must be its own."""
    content = folder.read_run()
    settings, given = PretrainingSettings.from_json(content["settings"]), normal_form(given)
    for name, value in given.items():
        if getattr(settings, name) != value and (name, value) != ("device", "auto"):
            raise UserError(f"{folder.path} was started with {option(name)} {getattr(settings, name)}, not {value}")
    with folder.locked():
        pass
    data = recall(_prepared(open_for(settings, watch, unlabelled=True)), settings, folder)
    take_surroundings(content)
    training = _training(settings, data, folder)
    saved = checkpoint.load_newest(folder.checkpoints, training.device)
    if saved is not None:
        training.restore(saved)
    return PretrainingRun(folder, settings, data, training)


def _training(settings: PretrainingSettings, data: Data, folder: RunFolder) -> Training:
    device = choose_device(settings.device)
    repeatable(device)
    torch.manual_seed(settings.seed)
    assert settings.batch_size is not None
    objective = settings.objective()
    network = build_backbone(settings, data.train.images.shape, channel_statistics(data.train.images))
    loader = SampleLoader(
        data.train,
        batch_size=settings.batch_size,
        seed=settings.seed,
        device=device,
        augment=named_augment(settings.augment, data.train.images.shape[1]),
        part=(processes.rank(), processes.count()),
        views=settings.views,
    )
    if loader.num_samples // loader.steps_per_epoch // processes.count() < 2:
        raise UserError(f"{loader.num_samples} samples are too few for batches of {settings.batch_size}")
    storage = Storage.parse(settings.targets, device=device, file=folder.path / "targets.bin")
    return Training(
        objective,
        objective.build(network, data.num_classes),
        objective.initial_targets(data.train.labels, data.num_classes, storage),
        loader,
        settings.fit(),
        num_classes=data.num_classes,
        device=device,
    )


def build_backbone(settings: PretrainingSettings, shape: Shape, statistics: tuple[Tensor, Tensor]) -> Backbone:
    channels, height, width = shape
    network = backbone(settings.model, channels=channels, height=height, width_pixels=width, width=settings.width)
    return Normalised(network, *statistics)


def pretrain(run: PretrainingRun, watch: Callable[[Training], None] = lambda training: None) -> dict[str, Any]:
    """Train to the end, write the run folder, and return the result."""
    with run.folder.locked():
        run.folder.forget_metrics_after(run.training.epoch)
        clock = time.monotonic()

        def record(training: Training) -> Figures:
            nonlocal clock
            figures = _measure(run)
            now = time.monotonic()
            seconds, clock = now - clock, now
            run.folder.append_metrics({**figures, "seconds": round(seconds, 3)})
            return figures

        fit(run.training, run.folder.checkpoints, after_epoch=record, after_step=watch)
        processes.wait_for_all()
        result = _result(run)
        processes.wait_for_all()
        run.folder.write_run({**run.folder.read_run(), "result": result})
    if processes.rank() == 0:
        write_pretraining_page(run.folder)
    processes.wait_for_all()
    return result


def _measure(run: PretrainingRun) -> dict[str, Any]:
    training = run.training
    encoders = cast(Encoders, unwrapped(training.model))
    epoch = training.epoch + 1
    count = len(run.data.train)
    watched = run.data.train.images.take(torch.linspace(0, count - 1, min(_WATCHED, count)).round().long())

    def both(images_BCHW: Tensor) -> Tensor:
        features_BF = encoders.backbone(images_BCHW)
        return torch.cat([features_BF, encoders.projector(features_BF)], 1)

    said = outputs(encoders, watched, training.device, forward=both)
    said = said[said.isfinite().all(1)]
    features_NF, projected_ND = said.tensor_split([encoders.backbone.num_features], 1)
    apart, outputs_apart, rank = spread(features_NF), spread(projected_ND), effective_rank(features_NF)
    figures: dict[str, Any] = {
        "epoch": epoch,
        "train_loss": training.tally.loss,
        "lr": learning_rate(training.settings.optimizer, epoch, training.settings.epochs),
        **training.tally.figures,
        "feature_std": apart,
        "output_std": outputs_apart,
        "effective_rank": rank,
        "collapsed": collapsed(apart, outputs_apart, rank),
    }
    if _labelled(run.data):
        figures["online_probe_train"] = accuracy(training.tally.predicted_N.cpu().long(), run.data.train.labels)
    return figures


def _result(run: PretrainingRun) -> dict[str, Any]:
    metrics, test = run.folder.read_metrics(), run.data.test
    last = metrics[-1]
    encoders = cast(Encoders, unwrapped(run.training.model))
    probe = encoders.probe
    on_test = None
    if probe is not None and test is not None:
        said_nK = outputs(encoders, test.images, run.training.device, forward=lambda x: probe(encoders.backbone(x)))
        on_test = accuracy(said_nK.argmax(1), test.labels)
    return {
        "run": str(run.folder.path),
        "method": run.settings.method,
        "views": run.settings.views,
        "epochs": run.settings.epochs,
        "online_probe_accuracy": on_test,
        "feature_std": last["feature_std"],
        "output_std": last["output_std"],
        "effective_rank": last["effective_rank"],
        "collapsed": last["collapsed"],
        "collapsed_in_epochs": [record["epoch"] for record in metrics if record["collapsed"]],
        "seconds_per_epoch": round(median(record["seconds"] for record in metrics), 3),
        "unreadable": len(run.data.unreadable),
    }


def load_backbone(folder: RunFolder, device: torch.device, *, trained: bool = True) -> Backbone:
    """The backbone of a run without labels, as its newest checkpoint has it, or as it was before training."""
    content = folder.read_run()
    settings = PretrainingSettings.from_json(content["settings"])
    channels, height, width = content["data"]["shape"]
    saved = checkpoint.load_newest(folder.checkpoints, device)
    if saved is None:
        raise UserError(f"{folder.path} holds no trained network; go on with: selfadapt pretrain --resume")
    own = {name.removeprefix("backbone."): value for name, value in saved.model.items() if name.startswith("backbone.")}
    torch.manual_seed(settings.seed)
    network = build_backbone(settings, (channels, height, width), (own["mean_C11"].flatten(), own["std_C11"].flatten()))
    if trained:
        network.load_state_dict(own)
    return network.to(device)
