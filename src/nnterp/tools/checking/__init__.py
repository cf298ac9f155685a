"""Checks whether a checkpoint is served as it should be, on one engine or between two.

The same blocks of code read and edit every value on each engine (`readings`). What they find
(`findings`) is compared with the definition of the values, and with what the other engine served
(`verdict`). Families are accepted by this check, and it works for any checkpoint.
"""
