"""Training: batches, steps, the loop, checkpoints and several processes.

Python binds this package and the function `lra_fnet.train` to the same name, the package once it is
imported. So it can be called, which calls the function.
"""

import sys
import types

from lra_fnet import train as _function


class _Package(types.ModuleType):
    __call__ = staticmethod(_function)


sys.modules[__name__].__class__ = _Package
