"""Reads PNG and JPEG images."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST = 2**20  # bytes of a file that is not resized


def decode(content: bytes, side: int, *, resize: bool = False) -> Image:
    """The colours of an image file, without transparency; a gray image has three equal ones.

    Args:
        content: a PNG or JPEG file of 8 bits a colour.
        side: height and width that it must have, pixels.
        resize: whether an image of another size is made so large (bicubic).

    Raises:
        ValueError: if it is no such image, or is damaged.
    """
    import PIL.Image

    try:
        if len(content) > LARGEST and not resize:
            raise ValueError(f"more than {LARGEST} bytes")
        with PIL.Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            other = image.size != (side, side)
            if (other and not resize) or image.mode not in ("L", "P", "RGB", "RGBA"):
                width, height = image.size
                raise ValueError(f"{width} x {height} pixels of mode {image.mode}")
            colours = image.convert("RGBA").convert("RGB")
            return colours.resize((side, side)) if other else colours
    except Exception as error:  # Pillow's decoders raise many kinds
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        size = "" if resize else f" of {side} x {side} pixels"
        raise ValueError(
            f"expected a PNG or JPEG{size} of 8 bits, gray or colour, found {reason}"
        ) from None
