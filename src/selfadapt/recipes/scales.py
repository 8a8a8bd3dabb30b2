"""Settings that several recipes share: the paper's, and those for two cores.

The laptop's are chosen so that ordinary training memorises wrong labels within them: few images, no augmentation. E_s
is a tenth of the paper's; alpha is the paper's.
"""

from selfadapt.recipes.recipe import Settings

# Section 4.2
CIFAR: Settings = {
    "model": "resnet34", "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4, "batch_size": 256, "epochs": 200,
    "schedule": "cosine", "warmup_epochs": 0.0, "augment": "crop-flip",
}  # fmt: skip
SAT: Settings = {"method": "sat-paper", "start_epoch": 60, "momentum": 0.9}
WHOLE: Settings = {"validation": 0.0}  # Table 1's script trains on all 50,000 images

SMALL: Settings = {
    "data": "cifar10", "limit": 5_000, "model": "resnet-small", "optimizer": "sgd", "lr": 0.1, "weight_decay": 5e-4,
    "batch_size": 256, "epochs": 30, "schedule": "cosine", "warmup_epochs": 0.0, "augment": "none",
}  # fmt: skip
SMALL_SAT: Settings = {"method": "sat-paper", "start_epoch": 6, "momentum": 0.9}
SMALL_MINUTES = 2.5  # of such a run: 150,000 images at about 1,200 a second, and what is measured after each epoch

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
SMALL_VIEW_MINUTES = 2.5  # of such a run with one view: 100,000 images at about 700 a second

# Section 7.1: a base rate of 2.0 for 256 images is 8 for 1,024
IMAGENET_PRETRAINING: Settings = {
    "data": "imagenet", "image_size": 224, "augment": "self-supervised-blur", "model": "resnet50",
    "optimizer": "lars", "lr": 8.0, "weight_decay": 1e-6, "batch_size": 1024, "epochs": 200, "schedule": "cosine",
    "warmup_epochs": 10.0, "hidden": 4096, "dimensions": 256,
}  # fmt: skip
