"""Arguments for a quiet Trainer on the CPU."""

from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from integrations.digits_problem import BATCH, EPOCHS


def arguments(folder: Path, **settings: Any) -> Any:
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no", "use_cpu": True}
    defaults = {"num_train_epochs": EPOCHS, "per_device_train_batch_size": BATCH, "max_grad_norm": 0.0}
    return TrainingArguments(output_dir=str(folder), **{**quiet, **defaults, **settings})
