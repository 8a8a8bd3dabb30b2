"""The same six labelled things in every form that can be written back: what a form may lose, a round trip shows."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

LABELS = ("cat", "dog", "cat", "dog", "cat", "dog")
COLOURS = [(40 * i, 250 - 40 * i, 10) for i in range(6)]


def write_images(folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    for i, colour in enumerate(COLOURS):
        Image.new("RGB", (8, 8), colour).save(folder / f"{i}.png")
    return [f"{i}.png" for i in range(6)]


def csv_table(folder: Path) -> Path:
    """Numbers with an id, a cell with a comma, and the line ends of Windows."""
    path = folder / "table.csv"
    rows = [("id", "note", "weight", "animal"), *((f"r{i}", "a, b", i, LABELS[i]) for i in range(6))]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def image_metadata(folder: Path) -> Path:
    root = folder / "photos"
    names = write_images(root / "train")
    lines = ["file_name,label,camera", *(f"{name},{label},x" for name, label in zip(names, LABELS, strict=True))]
    (root / "train" / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def label_studio(folder: Path) -> Path:
    """Six labelled tasks with all that an export has, a task without annotations, and a cancelled annotation."""
    path = folder / "export.json"
    names = write_images(folder / "upload" / "1")
    tasks: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        choice = {"from_name": "animal", "to_name": "image", "type": "choices", "value": {"choices": [LABELS[i]]}}
        cancelled = {"id": 100 + i, "was_cancelled": True, "result": []}
        annotation = {"id": i, "completed_by": 7, "lead_time": 1.5, "result": [{"id": f"x{i}", **choice}]}
        data = {"image": f"/data/upload/1/{name}", "who": "Zoë"}
        tasks.append({"id": 500 + i, "data": data, "annotations": [cancelled, annotation], "predictions": [{"id": 1}]})
    tasks.insert(2, {"id": 999, "data": {"image": "/data/upload/1/5.png"}, "annotations": []})
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return path


def label_studio_min(folder: Path) -> Path:
    path = folder / "min.json"
    names = write_images(folder)
    pairs = enumerate(zip(names, LABELS, strict=True))
    tasks = [{"id": i, "image": f"s3://bucket/{name}", "animal": label, "annotator": 3} for i, (name, label) in pairs]
    path.write_text(json.dumps(tasks))
    return path


def cvat(folder: Path) -> Path:
    path = folder / "annotations.xml"
    names = write_images(folder / "images")
    tags = [
        f'<image id="{i}" name="{name}" width="8" height="8"><tag label="{label}" source="manual">'
        f'<attribute name="sure">yes</attribute></tag></image>'
        for i, (name, label) in enumerate(zip(names, LABELS, strict=True))
    ]
    unlabelled = '<image id="6" name="none.png" width="8" height="8"></image>'
    meta = "<version>1.1</version><meta><task><id>4</id></task></meta><!-- by hand -->"
    path.write_text(
        f'<?xml version="1.0" encoding="utf-8"?><annotations>{meta}{"".join(tags)}{unlabelled}</annotations>'
    )
    return path


def class_folders(folder: Path) -> Path:
    root = folder / "classes"
    for i, name in enumerate(write_images(folder / "loose")):
        (root / LABELS[i]).mkdir(parents=True, exist_ok=True)
        (folder / "loose" / name).rename(root / LABELS[i] / name)
    (root / "readme.txt").write_text("kept")
    return root


def npz(folder: Path) -> Path:
    path = folder / "arrays.npz"
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    ids = np.array([f"v{i}" for i in range(6)])
    np.savez(path, x_train=x, y_train=np.array(LABELS), id_train=ids, scale=np.array(3.0))
    return path


def parquet(folder: Path) -> Path:
    import pyarrow
    from pyarrow import parquet as file

    path = folder / "table.parquet"
    label = pyarrow.array(LABELS).dictionary_encode()
    columns = {"id": [f"p{i}" for i in range(6)], "weight": pyarrow.array(range(6), pyarrow.int16()), "animal": label}
    file.write_table(pyarrow.table(columns), path)
    return path
