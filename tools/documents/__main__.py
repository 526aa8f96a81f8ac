"""Writes every generated document."""

from tools.documents import models

for module in (models,):
    module.write()
