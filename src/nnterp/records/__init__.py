"""Defines reads and edits as data: what is to be kept of a model's inside, and changed in it.

A trace is a block of Python that runs beside a prompt's forward. Most of what is done to a model
while it generates needs no Python: add a vector, remove a direction, replace rows, keep a value. A
record says such a thing beforehand, on either engine, and can be written as JSON.
"""
