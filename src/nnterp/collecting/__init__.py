"""Many prompts, few values: the way both engines gather them.

A trace runs a block of code for each prompt. To keep a value or two of each of thousands,
that is more than is needed: here the values are named beforehand, and taken for all the
prompts of a forward at once.
"""
