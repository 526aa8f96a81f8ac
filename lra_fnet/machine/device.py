"""The devices that JAX finds for this process."""

import os

from lra_fnet.errors import UserError, one_line


def require() -> None:
    """Starts JAX's backend.

    Raises:
      UserError: JAX finds no device of the platforms that JAX_PLATFORMS names.
    """
    import jax  # late: the command line starts without it

    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # an unknown name, a platform without devices
        named = os.environ.get("JAX_PLATFORMS")
        if not named:
            raise
        reason = f" ({one_line(error)})" if str(error) else ""
        raise UserError(
            f"JAX_PLATFORMS={named}: JAX finds no such device here{reason}: set it to cpu, or "
            "leave it out"
        ) from None
