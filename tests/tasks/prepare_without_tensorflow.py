"""Prepares a built-in set in a process that cannot find TensorFlow; prints its fingerprint.

Usage: prepare_without_tensorflow.py MODULE TASK/CONFIG DATA SETTINGS. SETTINGS is a JSON object of
constants to replace in lra_fnet.tasks.MODULE; "REMOTE" has the fields of a Remote.
"""

import importlib
import importlib.machinery
import json
import sys

find = importlib.machinery.PathFinder.find_spec


def find_without(name, *args):
    # None in sys.modules would make TFDS believe that TensorFlow is there.
    return None if name.partition(".")[0] == "tensorflow" else find(name, *args)


importlib.machinery.PathFinder.find_spec = find_without

from lra_fnet import tasks  # noqa: E402
from lra_fnet.data import sources, store  # noqa: E402

_, name, label, data, settings = sys.argv
task, config = label.split("/")
module = importlib.import_module(f"lra_fnet.tasks.{name}")
for key, value in json.loads(settings).items():
    if key == "REMOTE":
        value = sources.Remote(*value)
        tasks.REGISTRY[task].remote = value
    setattr(module, key, value)
store.expected = dict
prepared = tasks.prepare(tasks.make(task, config), data, jobs=2)
assert sum(map(len, (prepared.arrays(split).labels for split in prepared.rows)))
tasks.illustrate(prepared)
assert not {"jax", "tensorflow"} & set(sys.modules)
print(prepared.fingerprint)
