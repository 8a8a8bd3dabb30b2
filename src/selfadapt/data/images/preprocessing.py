"""How image files become what a trained network takes. Does not import torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfadapt.data.images.decode import Frame, UnreadableImage, decode_array

if TYPE_CHECKING:
    from selfadapt.data.images.decode import Array


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The shape C×H×W of an input and how a file is converted to it.

    Without a frame, an image of this size stays as it is, and any other is resized to a square.
    """

    shape: tuple[int, ...]
    frame: Frame | None = None
    white: float | None = None  # the value of white in images of more than 8 bits

    def read(self, path: Path) -> "Array":
        """Read an image file as uint8, C×H×W.

        Raises:
            UnreadableImage: If the file cannot be decoded or converted to the shape.
        """
        channels, height, width = self.shape
        if self.frame is not None:
            return decode_array(path, channels=channels, resize=self.frame, white=self.white)
        pixels = decode_array(path, channels=channels, resize=None, white=self.white)
        if pixels.shape[1:] == (height, width):
            return pixels
        if height != width:
            size = f"{pixels.shape[2]}×{pixels.shape[1]}"
            raise UnreadableImage(f"it is {size}, but the network takes only {width}×{height}")
        return decode_array(path, channels=channels, resize=height, white=self.white)

    def state_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Preprocessing":
        frame = None if state["frame"] is None else Frame(**state["frame"])
        return cls(shape=tuple(state["shape"]), frame=frame, white=state["white"])
