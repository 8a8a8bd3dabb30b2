"""Request and facts in, plan or refusal out, without data and without training."""

import json
import re
from dataclasses import replace
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
import torch

from runs.config.stub_facts import IMAGENET, NAMED, PHOTOS, PHOTOS_ON_GPU, VECTORS, facts_of, planned_for
from selfadapt.core.errors import UserError
from selfadapt.runs.config.facts import SourceFacts
from selfadapt.runs.config.plan import DataPlan, ModelPlan, Plan, TrainingPlan
from selfadapt.runs.config.planning import plan
from selfadapt.runs.config.request import Kind, Request

IMAGE, VECTOR, PHOTO = (3, 32, 32), (8,), (3, 224, 224)
Given = dict[str, Any]


def _facts(source: SourceFacts, shape: tuple[int, ...], about: Given) -> Any:
    return facts_of(shape, source=source, **about)


@pytest.mark.parametrize(
    ("kind", "given", "source", "shape", "about", "expected"),
    [
        # A large and a small set of images, from scratch.
        (
            "labels", {}, NAMED, IMAGE, {"samples": 45_000},
            {"model": "resnet-small", "weights": "none", "tune": "all", "method": "sat", "epochs": 60, "lr": 0.1,
             "batch_size": 256, "weight_decay": 5e-4, "warmup_epochs": 0.0, "augment": "crop", "crops": "square",
             "views": 1, "image_size": None, "device": "cpu"},
        ),
        ("labels", {}, NAMED, IMAGE, {"samples": 4_999}, {"batch_size": 64, "weight_decay": 5e-3}),
        ("labels", {}, NAMED, IMAGE, {"samples": 5_000}, {"batch_size": 256, "weight_decay": 5e-4}),
        ("labels", {"epochs": 3, "lr": 0.5}, NAMED, IMAGE, {}, {"epochs": 3, "lr": 0.5, "batch_size": 64}),
        ("labels", {"augment": "none"}, NAMED, IMAGE, {}, {"augment": "none"}),
        ("labels", {}, NAMED, IMAGE, {"image_size": 48}, {"image_size": 48}),
        # Vectors: a linear layer that is solved for, unless a method is named.
        ("labels", {}, VECTORS, VECTOR, {}, {"model": "linear", "method": "sat-folds", "epochs": 1, "batch_size": 62}),
        ("labels", {"method": "sat"}, VECTORS, VECTOR, {}, {"method": "sat", "epochs": 20, "lr": 0.003}),
        ("labels", {"momentum": 0.5}, VECTORS, VECTOR, {}, {"method": "sat", "momentum": 0.5}),
        ("labels", {"method": "erm"}, VECTORS, VECTOR, {"samples": 20}, {"batch_size": 4, "weight_decay": 0.3}),
        ("labels", {"method": "erm"}, VECTORS, VECTOR, {"samples": 90_000}, {"batch_size": 256}),
        ("labels", {"model": "mlp"}, VECTORS, VECTOR, {}, {"method": "sat", "epochs": 60}),
        # Photos: frozen features on a CPU, fine-tuning on a GPU.
        (
            "labels", {}, PHOTOS, VECTOR, {},
            {"model": "tf_efficientnet_lite0", "weights": "pretrained", "tune": "head", "method": "sat-folds"},
        ),
        ("labels", {"head": "mlp"}, PHOTOS, VECTOR, {}, {"method": "sat", "epochs": 20}),
        (
            "labels", {}, PHOTOS_ON_GPU, PHOTO, {},
            {"tune": "all", "method": "sat", "epochs": 15, "lr": 0.01, "batch_size": 32, "warmup_epochs": 1.0},
        ),
        ("labels", {"epochs": 1, "start_epoch": 0}, PHOTOS_ON_GPU, PHOTO, {}, {"epochs": 1, "warmup_epochs": 0.0}),
        ("labels", {"weights": "none"}, PHOTOS, PHOTO, {}, {"tune": "all", "epochs": 60, "lr": 0.1}),
        ("labels", {"model": "timm/resnet18"}, PHOTOS, VECTOR, {}, {"tune": "head", "weights": "pretrained"}),
        # Crops from image files, where papers on the set do so.
        (
            "labels", {"model": "resnet18"}, IMAGENET, PHOTO, {"image_files": True},
            {"crops": "original", "augment": "resized-crop", "image_size": 224},
        ),
        (
            "labels", {"model": "resnet18", "augment": "crop-flip"}, IMAGENET, PHOTO, {"image_files": True},
            {"crops": "square", "augment": "crop-flip", "image_size": None},
        ),
        ("labels", {"tune": "head", "model": "vit_tiny_patch16_224"}, IMAGENET, VECTOR, {}, {"crops": "square"}),
        # Without labels.
        (
            "pretraining", {}, NAMED, IMAGE, {"samples": 45_000},
            {"model": "resnet18", "weights": "none", "tune": "all", "augment": "self-supervised", "epochs": 100,
             "batch_size": 128, "lr": 0.1, "weight_decay": 5e-5, "warmup_epochs": 3.75, "method": "sat", "views": 1},
        ),
        ("pretraining", {"epochs": 8}, NAMED, IMAGE, {"samples": 50_000}, {"batch_size": 512, "warmup_epochs": 0.3}),
        ("pretraining", {"method": "moco"}, NAMED, IMAGE, {"samples": 800}, {"queue": 100, "views": 2}),
        # Virtual shards.
        ("labels", {}, NAMED, IMAGE, {}, {"shuffle": "global"}),
        ("labels", {"shuffle": "shards:6"}, NAMED, IMAGE, {"processes": 3}, {"shuffle": "shards:6"}),
        # What a method chooses for its task.
        ("labels", {"method": "sat-paper", "epochs": 20}, NAMED, IMAGE, {}, {"start_epoch": 6}),
        ("labels", {"method": "co-teaching"}, NAMED, IMAGE, {"noise_rate": 0.25}, {"noise_rate": 0.25}),
    ],
)  # fmt: skip
def test_what_is_chosen(
    kind: Kind, given: Given, source: SourceFacts, shape: tuple[int, ...], about: Given, expected: Given
) -> None:
    request = Request.of(kind, data="data", **given)
    values = plan(request, _facts(source, shape, about)).values()
    assert {name: values[name] for name in expected} == expected
    assert not [name for name, value in given.items() if values[name] != value]


@pytest.mark.parametrize(
    ("method", "views"),
    [("sat", 1), ("noise", 1), ("random-network", 1), ("byol", 2), ("moco", 2), ("simclr", 2), ("simsiam", 2)],
)
def test_views_are_those_of_the_paper(method: str, views: int) -> None:
    assert planned_for(Request.of("pretraining", data="digits", method=method), IMAGE).views == views
    if method != "simclr":
        assert planned_for(Request.of("pretraining", data="digits", method=method, views=1), IMAGE).views == 1


@pytest.mark.parametrize(
    ("kind", "given", "source", "shape", "about", "refusal"),
    [
        ("labels", {"labels": "a.csv", "corrected": "b.csv"}, NAMED, IMAGE, {}, "--labels and --corrected both give"),
        ("labels", {"head": "mlp"}, NAMED, IMAGE, {}, "--head mlp is for features of timm networks"),
        ("labels", {"head": "mlp"}, VECTORS, VECTOR, {}, "is not one: for vectors, choose --model mlp"),
        ("labels", {"weights": "pretrained"}, NAMED, IMAGE, {}, "resnet-small is trained from scratch"),
        ("labels", {"tune": "head"}, NAMED, IMAGE, {}, "--tune head is for timm networks"),
        ("labels", {"tune": "all"}, VECTORS, VECTOR, {}, "--tune all is for pretrained networks"),
        ("labels", {"tune": "head", "weights": "none"}, PHOTOS, PHOTO, {}, "--tune head needs a pretrained network"),
        ("labels", {"tune": "all", "head": "mlp"}, PHOTOS, PHOTO, {}, "--head mlp is for frozen features: --tune head"),
        ("labels", {"model": "resnet26"}, VECTORS, VECTOR, {}, "--model resnet26 takes images, and data holds vectors"),
        ("labels", {"width": 4}, PHOTOS, VECTOR, {}, "the width of tf_efficientnet_lite0 is fixed"),
        ("labels", {"width": 4}, VECTORS, VECTOR, {}, "the width of linear is fixed"),
        ("labels", {"noise": "gaussian:0.1"}, PHOTOS, VECTOR, {}, "--noise gaussian:0.1 changes images, and"),
        ("labels", {"crops": "original"}, PHOTOS, VECTOR, {}, "cuts crops from images, and this needs"),
        ("labels", {"crops": "original", "augment": "crop"}, NAMED, IMAGE, {}, "and --augment crop has none"),
        ("labels", {"crops": "original"}, NAMED, IMAGE, {}, "cuts crops from image files, and data has none"),
        (
            "labels", {"crops": "original", "noise": "gaussian:0.1"}, NAMED, IMAGE, {"image_files": True},
            "--crops original cannot cut crops from images that --noise changed",
        ),
        ("labels", {"lr": 9.0}, VECTORS, VECTOR, {}, "--method sat-folds takes no steps, so --lr would do nothing"),
        ("labels", {"dropout": 0.5}, VECTORS, VECTOR, {}, "takes no steps, so --dropout would do nothing"),
        ("labels", {"epochs": 4}, VECTORS, VECTOR, {}, "--method sat-folds has no epochs"),
        ("labels", {"method": "sat-folds"}, NAMED, IMAGE, {}, "--method sat-folds fits a linear head"),
        ("labels", {"schedule": "multistep:75", "epochs": 60}, NAMED, IMAGE, {}, "never lowers the learning rate"),
        ("labels", {"warmup_epochs": 60.0}, NAMED, IMAGE, {}, "--warmup-epochs 60 must be less than --epochs"),
        ("labels", {"warmup_from": 0.1}, NAMED, IMAGE, {}, "--warmup-from 0.1 has no effect without"),
        ("labels", {"targets": "float8"}, NAMED, IMAGE, {}, "--targets 'float8' is not known"),
        ("labels", {"augment": "melt"}, NAMED, IMAGE, {}, "--augment 'melt' is not known"),
        ("labels", {"mirror": True}, VECTORS, VECTOR, {}, "--mirror needs a network that takes images: leave it out"),
        ("labels", {"mirror": True}, PHOTOS, VECTOR, {}, "--mirror needs a network that takes images: add --tune all"),
        ("labels", {"image_size": 8}, VECTORS, VECTOR, {}, "--image-size needs a network that takes images"),
        ("labels", {"augment": "crop"}, VECTORS, VECTOR, {}, "--augment crop needs a network that takes images"),
        ("labels", {"sync_bn": True}, VECTORS, VECTOR, {}, "--sync-bn needs a network that takes images"),
        ("labels", {"progressive": "32:0.5"}, NAMED, IMAGE, {}, "images are of 32×32 pixels; give a smaller size"),
        (
            "labels", {"progressive": "4:0.5", "model": "vgg16"}, NAMED, IMAGE, {"refused_sizes": frozenset({4})},
            "--progressive 4: vgg16 does not take images of 4 pixels; give a larger size",
        ),
        ("labels", {"batch_size": 1}, NAMED, IMAGE, {}, "1000 samples in batches of 1 leave less than two"),
        ("labels", {"batch_size": 2}, NAMED, IMAGE, {"processes": 2}, "in batches of 2, 2 processes leave less than"),
        ("labels", {"batch_size": 4, "micro_batches": 4}, NAMED, IMAGE, {}, "batches of 4 and 4 micro-batches leave"),
        ("labels", {"shuffle": "shards:8"}, NAMED, IMAGE, {"processes": 3}, "use one of 1, 2, 4, 8 processes"),
        ("labels", {"shuffle": "shards:65"}, NAMED, IMAGE, {}, "always take them from the same shards; use at most 64"),
        ("labels", {"shuffle": "shards"}, VECTORS, VECTOR, {}, "takes no steps, so --shuffle would do nothing"),
        ("labels", {"method": "early-stopping"}, NAMED, IMAGE, {"has_validation": False}, "needs a validation"),
        ("labels", {"start_epoch": 60, "method": "sat-paper"}, NAMED, IMAGE, {}, "--start-epoch 60"),
        ("pretraining", {"method": "simclr", "views": 1}, NAMED, IMAGE, {}, "--method simclr contrasts two views"),
    ],
)  # fmt: skip
def test_what_is_refused(
    kind: Kind, given: Given, source: SourceFacts, shape: tuple[int, ...], about: Given, refusal: str
) -> None:
    request = Request.of(kind, data="data", **given)
    with pytest.raises(UserError, match=re.escape(refusal)):
        plan(request, _facts(source, shape, about))


@pytest.mark.parametrize(
    ("kind", "given", "refusal"),
    [
        ("labels", {"warp": 1}, "--warp is not a setting of sat"),
        ("labels", {"folds": 3}, "--folds is not a setting of sat"),
        ("labels", {"views": 2}, "--views is not a setting of sat"),
        ("pretraining", {"noise": "symmetric:0.4"}, "--noise is not a setting of sat"),
        ("labels", {"method": "magic"}, "--method 'magic' is not known"),
        ("labels", {"seed": -1}, "--seed -1 must be at least 0"),
        ("labels", {"optimizer": "rprop"}, "--optimizer 'rprop' is not known"),
        ("labels", {"noise": "white:2"}, "--noise 'white:2' is neither KIND:RATE"),
        ("labels", {"schedule": "square"}, "--schedule 'square'"),
        ("labels", {"shuffle": "rows"}, "--shuffle 'rows' is not known; choose global, shards, or shards:V"),
        ("labels", {"shuffle": "shards:0"}, "--shuffle 'shards:0' is not known"),
        ("labels", {"shuffle": "shards:-1"}, "--shuffle 'shards:-1' is not known"),
    ],
)
def test_one_wrong_setting(kind: Kind, given: Given, refusal: str) -> None:
    with pytest.raises(UserError, match=re.escape(refusal)):
        Request.of(kind, **{"data": "digits", **given})


def _run_json(chosen: Plan, facts: Any) -> dict[str, Any]:
    """What run.json holds, as far as a plan is read from it."""
    about = {
        "name": facts.name, "classes": list("abcdefghij"), "shape": facts.spec.shape,
        "samples": {"train": facts.samples, "validation": 100, "test": None},
    }  # fmt: skip
    noise = None if facts.noise_rate is None else {"actual": facts.noise_rate}
    return dict(json.loads(json.dumps({"settings": chosen.to_json(), "data": about, "noise": noise})))


@pytest.mark.parametrize(
    ("kind", "given", "source", "shape"),
    [
        ("labels", {"seed": 7}, NAMED, IMAGE),
        ("labels", {"start_epoch": "auto", "seed": 7}, NAMED, IMAGE),
        ("labels", {"seed": 7}, VECTORS, VECTOR),
        ("labels", {"noise": "symmetric:0.4", "method": "co-teaching"}, NAMED, IMAGE),
        ("labels", {}, PHOTOS, VECTOR),
        ("pretraining", {"seed": 7}, NAMED, IMAGE),
        ("pretraining", {"method": "moco", "beta": "0.9:1"}, NAMED, IMAGE),
    ],
)
def test_a_plan_is_read_back_as_it_was_written(
    kind: Kind, given: Given, source: SourceFacts, shape: tuple[int, ...]
) -> None:
    facts = facts_of(shape, source=source, noise_rate=0.38 if "noise" in given else None)
    chosen = plan(Request.of(kind, data="data", **given), facts)
    content = _run_json(chosen, facts)
    assert Plan.from_json(content, kind) == chosen
    other: Kind = "labels" if kind == "pretraining" else "pretraining"
    with pytest.raises(UserError, match="this is a run with"):
        Plan.from_json(content, other)


def test_a_run_json_of_the_version_before_is_read() -> None:
    """It has null for the weights of networks that are trained from scratch, and may lack what came later."""
    facts = facts_of(IMAGE)
    chosen = plan(Request.of(data="digits"), facts)
    content = _run_json(chosen, facts)
    content["settings"]["model"] |= {"weights": None, "tune": None}
    del content["settings"]["data"]["crops"], content["settings"]["model"]["mirror"]
    assert Plan.from_json(content, "labels") == chosen
    content["settings"]["fit"]["warp"] = 1
    with pytest.raises(UserError, match="'warp'"):
        Plan.from_json(content, "labels")


def test_a_plan_leaves_nothing_open() -> None:
    """None is allowed only where it means that there is none."""
    assert not _optional(Plan)
    assert _optional(TrainingPlan) == set()
    assert _optional(ModelPlan) == {"width", "pretrained"}
    assert _optional(DataPlan) == {
        "labels", "corrected", "noise", "image_size", "progressive", "label_share", "text_column", "group_column",
        "limit", "test_limit",
    }  # fmt: skip


def _optional(owner: type) -> set[str]:
    return {name for name, annotation in get_type_hints(owner).items() if NoneType in get_args(annotation)}


def test_precision_is_what_the_device_computes_in() -> None:
    native = replace(PHOTOS_ON_GPU, bfloat16=True)
    for source, given, expected in (
        (NAMED, "auto", "float32"),
        (PHOTOS_ON_GPU, "auto", "float32"),
        (native, "auto", "bfloat16"),
        (native, "float16", "float16"),
        (NAMED, "bfloat16", "bfloat16"),
    ):
        chosen = plan(Request.of(data="digits", precision=given), _facts(source, PHOTO, {}))
        assert chosen.fit.precision == chosen.to_json()["fit"]["precision"] == expected


def test_virtual_shards_suit_the_batch_and_the_processes() -> None:
    for batch_size, processes, expected in (
        (256, 1, 64), (256, 2, 64), (256, 3, 48), (256, 6, 48), (256, 64, 64), (256, 96, 96), (50, 3, 48), (20, 1, 16),
    ):  # fmt: skip
        request = Request.of(data="digits", shuffle="shards", batch_size=batch_size)
        chosen = plan(request, _facts(NAMED, IMAGE, {"processes": processes}))
        assert (chosen.fit.shuffle, chosen.shards) == (f"shards:{expected}", expected)
    assert chosen.storage(torch.device("cpu")).sharded
    assert not plan(Request.of(data="digits"), facts_of(IMAGE)).storage(torch.device("cpu")).sharded


def test_a_run_that_was_compiled_or_not_is_read() -> None:
    facts = facts_of(IMAGE)
    content = _run_json(plan(Request.of(data="digits"), facts), facts)
    for before, now in ((True, "default"), (False, "none")):
        content["settings"]["fit"] |= {"compile": before, "precision": "float32"}
        content["settings"]["fit"].pop("deterministic", None)
        read = Plan.from_json(content, "labels")
        assert (read.fit.compile, read.fit.precision, read.fit.deterministic) == (now, "float32", True)


def test_what_a_started_run_must_have() -> None:
    """All settings but those that are chosen where they are not given."""
    required = Request.of(data="digits", method="sat", epochs=3).required()
    assert (required["epochs"], required["method"], required["noise"]) == (3, "sat", None)
    assert not {"lr", "model", "device", "views", "start_epoch"} & set(required)
    assert "method" not in Request.of(data="digits").required()
