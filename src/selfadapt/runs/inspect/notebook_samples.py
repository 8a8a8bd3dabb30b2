"""What a notebook shows of the samples of a run: images, values or text, and the map of their features."""

import base64

import numpy as np
import torch

from selfadapt.core.errors import UserError
from selfadapt.evaluation.label_errors.feature_map import FeatureMap
from selfadapt.evaluation.label_errors.notebook_view import ShowSample, image_html, text_html
from selfadapt.evaluation.label_errors.report import LabelErrorReport
from selfadapt.review.neighbours import has_features, read_features
from selfadapt.review.previews import THUMBNAIL, ImageViews, NoPreview, views_of
from selfadapt.run_folder.folder import RunFolder
from selfadapt.runs.inspect.review_features import compute_features


def sample_views(folder: RunFolder, report: LabelErrorReport) -> ShowSample:
    """A function that gives HTML for the sample in a row of labels.csv."""
    views = views_of(folder, report)

    def show(row: int) -> str:
        try:
            if isinstance(views, ImageViews):
                content, media_type = views.image(row, THUMBNAIL)
                return image_html(f"data:{media_type};base64,{base64.b64encode(content).decode()}")
            return text_html(", ".join(f"{name}: {value}" for name, value in views.values(row)))
        except NoPreview as error:
            return text_html(str(error))

    return show


def run_map(folder: RunFolder, report: LabelErrorReport) -> FeatureMap | None:
    """The map of the network's features, which are computed once and kept for the review; None without the data."""
    try:
        if not has_features(folder):
            compute_features(folder, "cpu")
    except UserError:
        return None
    ids, features_NF = read_features(folder)
    known = [position for position, sample_id in enumerate(ids) if sample_id in report.position]
    rows_N = np.array([report.position[ids[position]] for position in known])
    chosen = FeatureMap.of(torch.from_numpy(features_NF[known].astype(np.float32)), report.is_error[rows_N])
    return FeatureMap(rows=rows_N[chosen.rows], features=chosen.features)
