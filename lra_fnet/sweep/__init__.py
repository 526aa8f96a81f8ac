"""Tables, grids and searches over gin bindings; every trial is an ordinary run folder.

A point is one choice of values for all axes; a trial is one seed of a point. Trials of a search are
compared on validation and never read the test split; `finish` reads it for the selected ones.
"""

from typing import Literal, get_args

Sampler = Literal["grid", "random", "tpe"]
SAMPLERS = get_args(Sampler)
