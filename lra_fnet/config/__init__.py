"""Loads gin files in a fixed order and rejects every binding that would have no effect.

gin itself rejects a misspelt configurable or parameter, but accepts a misspelt macro and a binding
that nothing reads. Both are errors here: `base.gin` declares every macro, and `unread_bindings`
lists those that nothing has read once everything has been built.
"""

# ruff: noqa: F401 (the names that other modules use)

from lra_fnet.config.bindings import (
    literal,
    normalise,
    one_form,
    short,
    split,
    split_bindings,
    split_names,
    values,
)
from lra_fnet.config.differences import SPEED_ONLY, Difference, differing, inert, is_setting
from lra_fnet.config.gin_files import (
    GIN_DIR,
    YOURS,
    GinText,
    about,
    changes,
    expanded,
    known,
    lengths,
    sweep,
    texts,
    title,
)
from lra_fnet.config.inspection import operative, settings, unread_bindings
from lra_fnet.config.loading import alone, load, load_operative
from lra_fnet.config.parsing import OutsideCode, bind_missing
from lra_fnet.config.user_code import code_of, import_modules, used_imports
