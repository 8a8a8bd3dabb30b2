"""Progressive resizing, as a user gives it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfadapt.core.errors import UserError
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.config.request import Request
from selfadapt.runs.config.sections import parse_progressive
from selfadapt.runs.lifecycle.lifecycle import start


def test_sizes_and_the_shares_up_to_which_they_hold() -> None:
    assert parse_progressive(None) == ()
    assert parse_progressive("24:0.5") == ((24, 0.5),)
    assert parse_progressive("16:0.25,24:0.5") == ((16, 0.25), (24, 0.5))


@pytest.mark.parametrize(
    "text", ["", "24", "24:", "0:0.5", "24:0", "24:1.5", "24:0.5,28:0.5", "28:0.5,24:0.25", "a:0.5", "24:nan"]
)
def test_what_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not SIZE:SHARE"):
        Request.of(data="digits", progressive=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"progressive": "8:0.5"}, "--progressive 8: images are of 8×8 pixels; give a smaller size"),
        ({"progressive": "4:0.5", "model": "mlp"}, "--progressive 4: mlp does not take images of 4 pixels"),
    ],
)
def test_sizes_that_do_not_fit_leave_nothing_behind(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    settings = Request.of(data="digits", epochs=2, limit=40, test_limit=10, **options)
    with pytest.raises(UserError, match=re.escape(message)):
        start(settings, RunFolder(tmp_path / "run"))
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize(
    "options",
    [{"mirror": True}, {"progressive": "24:0.5"}, {"augment": "crop-flip"}, {"sync_bn": True}, {"image_size": 8}],
)
def test_a_network_that_sees_no_images_does_not_do_it(options: dict[str, Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "vectors.npz", x_train=np.zeros((40, 5), np.float32), y_train=np.arange(40) % 2)
    settings = Request.of(data=str(tmp_path / "vectors.npz"), **options)
    with pytest.raises(UserError, match="needs a network that takes images: leave it out"):
        start(settings, RunFolder(tmp_path / "run"))
