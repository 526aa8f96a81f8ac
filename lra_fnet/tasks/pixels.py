"""PNG and JPEG images as pixels."""

from __future__ import annotations

import io

import numpy as np

from lra_fnet.tasks.sources import short

LARGEST = 2**20  # bytes of a file that is not resized
_MODES = ("L", "P", "RGB", "RGBA")


def colours(content: bytes, side: int, *, resize: bool = False) -> np.ndarray:
    """Returns the colours of an image file, without transparency; gray has three equal ones.

    Args:
        content: a PNG or JPEG file of 8 bits per colour.
        side: height and width that the image must have, in pixels.
        resize: whether to resize an image of another size (bicubic).

    Returns:
        uint8 [side, side, 3].

    Raises:
        ValueError: if it is not such an image, or is damaged.
    """
    return np.asarray(_decode(content, side, resize))


def gray(content: bytes, side: int) -> np.ndarray:
    """Returns the gray values uint8 [side * side] of an image file, as Pillow converts them.

    Raises:
        ValueError: as for `colours`.
    """
    return np.asarray(_decode(content, side, False).convert("L")).reshape(-1)


def _decode(content: bytes, side: int, resize: bool):
    import PIL.Image  # late: only preparing and predicting need it

    try:
        if len(content) > LARGEST and not resize:
            raise ValueError(f"more than {LARGEST} bytes")
        with PIL.Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if (image.size != (side, side) and not resize) or image.mode not in _MODES:
                width, height = image.size
                raise ValueError(f"{width} x {height} pixels of mode {image.mode}")
            rgb = image.convert("RGBA").convert("RGB")
            return rgb if rgb.size == (side, side) else rgb.resize((side, side))
    except Exception as error:  # Pillow's decoders raise many types
        size = "" if resize else f" of {side} x {side} pixels"
        raise ValueError(
            f"expected a PNG or JPEG{size} of 8 bits, gray or colour, found {short(error)}"
        ) from None
