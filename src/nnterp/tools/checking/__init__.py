"""Whether a checkpoint is served as it should be, on one engine or between two.

The same blocks of code read and edit every value on each engine (`readings`); what they
find (`findings`) is held against the definition of the values, and against the other
engine (`verdict`). It is how a family is accepted, and works for any checkpoint.
"""
