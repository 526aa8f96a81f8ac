"""Performer: FAVOR+ attention in linear time and memory (Choromanski et al., arXiv:2009.14794).

K is the width of one head, H the number of heads, M the number of features. No array has L x L
entries: phi(Q) (phi(K)^T V) is contracted from the right (the paper's Eq. 4).
"""

import functools
from typing import Annotated, ClassVar, Literal

import gin
import jax
import jax.numpy as jnp
from jax import lax

from lra_fnet.errors import UserError
from lra_fnet.machine.device import cores_of_device
from lra_fnet.models.kernels import blocks, fastest, feature_tiles
from lra_fnet.models.mixer import HeadMixer, drawn
from lra_fnet.settings import Least

RELU_EPSILON = 1e-3  # added to each ReLU feature; kernel_epsilon of LRA and the Performer authors


def draw_features(rng, num_features, width, *, orthogonal=True):
    """Draws random directions w_1 .. w_M, each distributed as N(0, I) in `width` dimensions.

    With `orthogonal`, rows are exactly orthogonal within each block of `width` rows (the paper's
    Sec. 2.4: a Haar-random rotation by QR, with chi-distributed norms), which lowers the variance
    and preserves the distribution of each row.

    Returns:
      float32 [M, K].
    """
    rng_norms, rng_blocks = jax.random.split(rng)
    gaussian = jax.random.normal(rng_norms, (num_features, width), jnp.float32)
    if not orthogonal:
        return gaussian
    num_blocks = -(-num_features // width)
    # On a CPU of two cores, batched QRs of several layers, which `redraw` starts at the same time,
    # wait for each other's threads for ever (LAPACK in jaxlib 0.10.2).
    squares = jax.random.normal(rng_blocks, (num_blocks, width, width), jnp.float32)
    one_at_a_time = functools.partial(lax.map, jnp.linalg.qr)
    q, r = lax.platform_dependent(squares, cpu=one_at_a_time, default=jnp.linalg.qr)
    # QR alone is not Haar-distributed: LAPACK's sign convention would bias the kernel's estimate.
    q = q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[:, None, :]
    directions = q.reshape(num_blocks * width, width)[:num_features]
    return directions * jnp.linalg.norm(gaussian, axis=1, keepdims=True)


def softmax_attention(query, key, value, mask, features):
    """Estimates softmax attention by FAVOR+ with positive features (the paper's Lemma 1).

    phi(x)_m = exp(w_m . x - |x|^2 / 2) with x scaled by K^(-1/4). Two stabilisers cancel exactly
    between numerator and denominator: the largest exponent of each feature over the keys moves to
    the queries, then each query's largest is subtracted. So the denominator is at least 1 and needs
    no epsilon (the authors' code shifts all keys by one number and adds 1e-6 to every feature).

    Args:
      query: [B, L, H, K].
      key: [B, L, H, K].
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      features: w, [M, K].

    Returns:
      [B, L, H, K] in value's dtype; zeros where a row has no key.
    """
    dtype = jnp.promote_types(query.dtype, jnp.float32)
    scale = query.shape[-1] ** -0.25
    query, key = (jnp.swapaxes(x.astype(dtype), 1, 2) * scale for x in (query, key))
    exponents_q = _project(query, features)
    exponents_k = _project(key, features) - 0.5 * jnp.square(key).sum(axis=-1, keepdims=True)
    exponents_k = jnp.where(mask[:, None, :, None], exponents_k, jnp.finfo(dtype).min)
    peak = lax.stop_gradient(exponents_k.max(axis=2, keepdims=True))  # [B, H, 1, M]
    exponents_q = exponents_q + peak
    top = lax.stop_gradient(exponents_q.max(axis=-1, keepdims=True))
    return linear_attention(jnp.exp(exponents_q - top), jnp.exp(exponents_k - peak), value, mask)


def relu_attention(query, key, value, mask, features=None):
    """Attends with the generalised kernel phi(x) = ReLU(w x) + 1e-3 (the paper's Sec. 2.2).

    Args:
      query: [B, L, H, K], not scaled.
      key: [B, L, H, K], not scaled.
      value: [B, L, H, K].
      mask: bool [B, L], True at keys that may be attended to.
      features: w, [M, K]; None for phi(x) = ReLU(x) + 1e-3, as in LRA's code.

    Returns:
      [B, L, H, K] in value's dtype; zeros where a row has no key.
    """

    def phi(x):
        x = jnp.swapaxes(x.astype(jnp.promote_types(x.dtype, jnp.float32)), 1, 2)
        return jax.nn.relu(x if features is None else _project(x, features)) + RELU_EPSILON

    return linear_attention(phi(query), phi(key), value, mask)


def linear_attention(phi_query, phi_key, value, mask):
    """Computes phi(Q) (phi(K)^T V), each row divided by phi(Q) (phi(K)^T 1), in time linear in L.

    Args:
      phi_query: [B, H, L, M], not negative.
      phi_key: [B, H, L, M], not negative.
      value: [B, L, H, K].
      mask: bool [B, L]; a masked key's features are set to 0.

    Returns:
      [B, L, H, K] in value's dtype.
    """
    wide = phi_key.dtype
    phi_key = jnp.where(mask[:, None, :, None], phi_key, 0).astype(value.dtype)
    phi_query, value = phi_query.astype(value.dtype), jnp.swapaxes(value, 1, 2)
    summary = jnp.einsum("bhlk,bhlm->bhkm", value, phi_key)  # the fast order, see blocks.weighted
    mass = phi_key.astype(wide).sum(axis=2)
    numerator = blocks.weighted(phi_query, jnp.swapaxes(summary, 2, 3), value.dtype)
    denominator = jnp.einsum("bhlm,bhm->bhl", phi_query.astype(wide), mass)[..., None]
    out = numerator / jnp.where(denominator > 0, denominator, 1)
    return jnp.swapaxes(out.astype(value.dtype), 1, 2)


def _project(x, features):
    """Maps [B, H, L, K] and features [M, K] -> [B, H, L, M], in full float32 for the exponents."""
    return jnp.einsum("bhlk,mk->bhlm", x, features.astype(x.dtype), precision="highest")


@gin.configurable
class Performer(HeadMixer):
    """FAVOR+ or ReLU-kernel attention with LRA's projections; bidirectional; padding is masked.

    There are no attention weights, so `dropout` has no effect (as in LRA). The features are a pure
    function of (seed, layer), shared by heads and examples, so checkpoints do not hold them. The
    paper and the authors' code draw new ones during training: `redraw` does so at every training
    step, from the "dropout" stream; evaluation always uses the draw of (seed, layer).
    """

    kernel: Literal["softmax", "relu"]  # "softmax": FAVOR+
    num_features: int  # M; 0, for "relu" only: no projection
    orthogonal: bool
    redraw: bool
    seed: Annotated[int, Least(0, suggest=0, below=2**32)]

    uses_dropout: ClassVar[bool] = False
    equivariant: ClassVar[bool] = True
    uses_first_only: ClassVar[bool] = True

    def check(self):
        """See `Mixer.check`; only the ReLU kernel works without features."""
        if self.num_features < (1 if self.kernel == "softmax" else 0):
            raise UserError(
                f"Performer.num_features must be at least 1 (0 with kernel 'relu' only), got "
                f"{self.num_features} with kernel {self.kernel!r}: set it to 256, say"
            )

    def attend(self, query, key, value, mask, *, train):
        """See `softmax_attention`, which few cores compute in tiles, and `relu_attention`."""
        features, width = None, query.shape[-1]
        if self.num_features:

            def draw(key):
                return draw_features(key, self.num_features, width, orthogonal=self.orthogonal)

            features = drawn(self, draw, train=train)
        arrays = query, key, value, mask, features
        if self.kernel == "relu":
            return relu_attention(*arrays)
        if jax.default_backend() != "cpu" or query.shape[1] == 1:
            return softmax_attention(*arrays)
        # No tiles on more cores: they share a product only if it is large.
        sizes = {1: 256, 2: 1024}  # positions in a tile
        size = fastest.decide("tiles of features", lambda: sizes.get(cores_of_device(), 0))
        if size == 0:
            return softmax_attention(*arrays)
        return feature_tiles.attend(*arrays, size=size, padding_unread=self.padding_unread)
