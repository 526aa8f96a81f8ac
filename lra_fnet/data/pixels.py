"""PNG and JPEG images as pixels."""

import io
import math

import numpy as np

from lra_fnet.errors import one_line


def read(content: bytes, side: int, mode: str, *, resize: bool = False) -> np.ndarray:
    """Returns the pixels of an image file, upright (EXIF) and without transparency.

    Args:
        content: a PNG or JPEG file; of 16 bits per colour the upper eight count.
        side: height and width that the image must have, in pixels.
        mode: "RGB" for colours (gray has three equal ones), or "L" for gray values, as Pillow
            converts them.
        resize: whether to resize an image of another size (bicubic).

    Returns:
        uint8 [side, side, 3] or uint8 [side, side].

    Raises:
        ValueError: if it is not such an image, or is damaged.
    """
    import PIL.Image  # late: only preparing and predicting need it
    import PIL.ImageOps

    try:
        with PIL.Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
            if image.mode == "I;16":  # as Pillow reads colours of 16 bits
                image = PIL.Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            image = PIL.ImageOps.exif_transpose(image)
            if image.size != (side, side) and not resize:
                raise ValueError(f"{image.size} pixels")
            rgba = image.convert("RGBA")
            white = PIL.Image.new("RGBA", rgba.size, "white")  # behind transparent pixels
            rgb = PIL.Image.alpha_composite(white, rgba).convert("RGB")
            rgb = rgb if rgb.size == (side, side) else rgb.resize((side, side))
            return np.asarray(rgb.convert(mode))
    except Exception as error:  # Pillow's decoders raise many types
        size = "" if resize else f" of {side} x {side} pixels"
        raise ValueError(
            f"expected a PNG or JPEG{size}, gray or colour, found {one_line(error, 100)}"
        ) from None


def block_means(images: np.ndarray, side: int) -> np.ndarray:
    """Returns the rounded means of square blocks, uint8 [n, side ** 2].

    Args:
        images: uint8 [n, pixels], row by row. Their height and width is a multiple of `side`.
        side: height and width of the result in pixels.
    """
    block = math.isqrt(images.shape[1]) // side
    means = images.reshape(-1, side, block, side, block).mean((2, 4))
    return means.round().astype(np.uint8).reshape(-1, side**2)
