"""Settings that several recipes share, at paper scale and for two cores.

Those for laptops are chosen so that ordinary training memorises wrong labels: few images, no augmentation, and a
network that learns quickly. Epochs and E_s are a tenth of the paper's, and alpha is 0.9^10, so that a target keeps as
much of its label at the same fraction of training.
"""

from selfadapt.recipes.recipe import Settings

# Section 4.2
CIFAR: Settings = {
    "model": "resnet34", "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "batch_size": 256, "epochs": 200,
    "schedule": "cosine", "warmup_epochs": 0.0, "augment": "crop-flip",
}  # fmt: skip
SAT: Settings = {"method": "sat-paper", "start_epoch": 60, "momentum": 0.9}
WHOLE: Settings = {"validation": 0.0}  # the script of Table 1 trains on all 50,000 images

SMALL: Settings = {
    "data": "cifar10", "limit": 6_000, "model": "whitened", "width": 16, "optimizer": "nesterov", "lr": 0.2,
    "weight_decay": 1.4e-4, "batch_size": 150, "epochs": 20, "schedule": "linear", "warmup_epochs": 2.0,
    "augment": "none",
}  # fmt: skip
SMALL_DATA = {"CIFAR10": "cifar10", "Fashion-MNIST": "fashion-mnist"}
SMALL_SAT: Settings = {"method": "sat-paper", "start_epoch": 6, "momentum": 0.35}  # 0.9^10
SMALL_MINUTES = 1.2  # per run: 120,000 images at about 1,700 per second
# half of the paper's epochs, with images that networks memorise in that time; halve E_s and square alpha as well
HALF: Settings = {**CIFAR, "data": "fashion-mnist", "batch_size": 64, "epochs": 100}
PERCEPTRON: Settings = {"model": "mlp", "width": 256, "augment": "none"}
# few and small enough that a network memorises them through crops and flips
AUGMENTED: Settings = {**HALF, "limit": 2_000, "validation": 0.2, "image_size": 14, "model": "whitened", "width": 16}
AUGMENTED_SAT: Settings = {"method": "sat-paper", "start_epoch": 30, "momentum": 0.81}
AUGMENTED_MINUTES = 0.75  # per run, two at once


def erm_and(ours: Settings) -> dict[str, Settings]:
    """The two rows of most figures."""
    return {"ERM": {"method": "erm"}, "ours": ours}


# Section 7.1; the paper gives no learning rate for small images
PRETRAINING: Settings = {
    "model": "resnet18", "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-5, "batch_size": 512, "epochs": 800,
    "warmup_epochs": 30.0, "schedule": "cosine", "augment": "self-supervised", "hidden": 4096, "dimensions": 256,
}  # fmt: skip
SMALL_PRETRAINING: Settings = {
    "data": "cifar10", "limit": 4_000, "model": "resnet-small", "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-5,
    "batch_size": 128, "epochs": 25, "warmup_epochs": 1.0, "schedule": "cosine", "augment": "self-supervised",
    "hidden": 512, "dimensions": 64,
}  # fmt: skip
# as short as still shows an effect; longer for the main results
SHORT_PRETRAINING: Settings = {**SMALL_PRETRAINING, "limit": 8_000, "epochs": 20, "lr": 0.3, "progressive": "24:0.8"}
LONG_PRETRAINING: Settings = {**SHORT_PRETRAINING, "limit": 20_000, "epochs": 60}
SHORT_VIEW_MINUTES = 3.0  # per run with one view: 160,000 images, most at 24 pixels, at about 900 per second
LONG_VIEW_MINUTES = 22.0  # 1.2 million images

# Appendix "Supervised learning on ImageNet", and Section 7.1: a base learning rate of 2.0 per 256 images is 8 for 1,024
IMAGENET: Settings = {
    "data": "imagenet", "image_size": 224, "crops": "original", "augment": "resized-crop", "validation": 0.0,
    "optimizer": "sgd", "lr": 0.3, "weight_decay": 5e-4, "batch_size": 768, "epochs": 95, "schedule": "cosine",
    "warmup_epochs": 5.0, "warmup_from": 0.0003, "precision": "float16",
}  # fmt: skip
IMAGENET_PRETRAINING: Settings = {
    "data": "imagenet", "image_size": 224, "crops": "original", "augment": "self-supervised-blur", "model": "resnet50",
    "optimizer": "lars", "lr": 8.0, "weight_decay": 1e-6, "batch_size": 1024, "epochs": 200, "schedule": "cosine",
    "warmup_epochs": 10.0, "sync_bn": True, "hidden": 4096, "dimensions": 256,
}  # fmt: skip
