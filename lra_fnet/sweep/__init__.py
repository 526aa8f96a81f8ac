"""Tables, grids and searches over gin bindings; every trial is an ordinary run folder.

A point is one choice of values of all axes, a trial one seed of a point. Trials of a search are
compared on validation and never open the test split; `finish` does so for those that it selects.
"""
