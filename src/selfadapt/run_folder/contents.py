"""What the JSON files of a run hold: the fields that the program reads, with their types and bounds."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from selfadapt.core.typed_json import Count, Finite, Scalar, Share, Within

_Size = Annotated[int, Within(1, 2**20)]
_Measured = float | None  # NaN where nothing was measured
_Epoch = Annotated[int, Within(0, 10**9)]


class _DataSettings(TypedDict):
    source: str
    noise: str | None


class _ModelSettings(TypedDict):
    name: str


class _FitSettings(TypedDict):
    epochs: _Epoch


class _MethodSettings(TypedDict):
    name: str


class _Settings(TypedDict):
    """The settings of a run. The sections are checked further where they become a plan."""

    kind: Literal["labels", "pretraining"]
    data: _DataSettings
    model: _ModelSettings
    fit: _FitSettings
    method: _MethodSettings
    seed: Annotated[int, Within(0, 2**63 - 1)]
    views: Annotated[int, Within(1, 2)]
    device: str


class _Noise(TypedDict):
    kind: str
    nominal: Share | None
    actual: Share


class _Samples(TypedDict):
    train: Count
    validation: Count | None
    test: Count | None


class _Number(TypedDict):
    name: str
    mean: Finite
    deviation: Annotated[float, Within(1e-300, 1e300)]
    misses: bool


class _Category(TypedDict):
    name: str
    categories: list[str | None]


class _ColumnReader(TypedDict):
    reader: Literal["columns"]
    numbers: dict[str, _Number]
    categories: dict[str, _Category]


class _TextReader(TypedDict):
    reader: Literal["text"]
    column: str
    encoder: str


class _Data(TypedDict):
    name: str
    classes: list[str]
    fingerprint: str
    shape: list[_Size]
    white: Finite | None
    reader: _ColumnReader | _TextReader | None
    samples: _Samples
    samples_sha256: str


class _Audit(TypedDict):
    suspects: Count
    precision: NotRequired[_Measured]
    recall: NotRequired[_Measured]
    recovery: NotRequired[_Measured]


class _SuggestedAccuracy(TypedDict):
    likely_errors: Count
    accuracy: _Measured


class LabelledResult(TypedDict):
    network: str
    result_epoch: NotRequired[Annotated[int, Within(1, 10**9)]]
    test_accuracy: _Measured
    test_balanced_accuracy: _Measured
    validation_accuracy: _Measured
    suggestions: NotRequired[dict[str, _SuggestedAccuracy]]  # of a split with likely errors that nobody corrected
    label_recovery: _Measured
    seconds: float
    audit: _Audit


class PretrainingResult(TypedDict):
    online_probe_accuracy: _Measured
    feature_std: float
    effective_rank: float
    collapsed: bool
    seconds_per_epoch: float | None


class Run(TypedDict):
    """run.json"""

    settings: _Settings
    method: str
    seed: Annotated[int, Within(0, 2**63 - 1)]
    start_epoch: _Epoch | None
    noise: _Noise | None
    data: _Data
    threads: Annotated[int, Within(1, 4096)]
    processes: Annotated[int, Within(1, 2**20)]
    versions: dict[str, str]
    parameters: Count
    chosen: NotRequired[dict[str, Finite]]
    other_trainings_seconds: NotRequired[dict[str, Finite]]
    result: NotRequired[dict[str, Any]]


class Epoch(TypedDict):
    """A line of metrics.jsonl, with the measurements of the method beside these."""

    epoch: Annotated[int, Within(0, 10**9)]


class Tracked(TypedDict):
    """An entry of tracking.json"""

    sent: Count
    run_id: str | None


class _SelectorCoverage(TypedDict):
    curve: list[list[float]]


class Coverage(TypedDict):
    """coverage.json"""

    selectors: dict[str, _SelectorCoverage]


class Calibration(TypedDict):
    """calibration.json"""

    selector: str
    passes: Annotated[int, Within(0, 10**6)]
    confidence: Share
    threshold: Finite
    guaranteed_risk: Share
    validation_coverage: Share
    test_risk: Share | None
    test_coverage: Share | None
    test_p_value: NotRequired[Share | None]  # of a test error above the guaranteed risk


class _ClassUnderAttack(TypedDict):
    robust_accuracy: Share | None


class Attacked(TypedDict):
    """An entry of attack.json"""

    attack: str
    clean_accuracy: float
    robust_accuracy: float
    eps: Finite
    norm: str
    images: Count
    at: str
    epoch: _Epoch
    by_class: dict[str, _ClassUnderAttack]
    warnings: list[str]
    notes: list[str]


class Outcomes(TypedDict):
    """A file in attacks/: the outcome for each image"""

    outcome: list[Annotated[int, Within(-(2**31), 2**31)]]


class Shift(TypedDict):
    """shift.json"""

    clean_accuracy: float
    levels: dict[str, float]
    mean: float
    by_kind: dict[str, dict[str, float]]
    notes: list[str]
    against: NotRequired[str]
    corruption_errors: NotRequired[dict[str, float]]
    mean_corruption_error: NotRequired[float]


class _ProbeSettings(TypedDict):
    augment: str


class Probe(TypedDict):
    """An entry of probe.json"""

    test_accuracy: _Measured
    knn_accuracy: _Measured
    random_network_accuracy: _Measured
    augmented_accuracy: NotRequired[_Measured]
    settings: _ProbeSettings


class FeaturesAbout(TypedDict):
    """review/features.json"""

    checkpoint: str
    ids: list[str]


Metrics = dict[str, Scalar]
