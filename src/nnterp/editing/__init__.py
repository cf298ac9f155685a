"""Applies edits that are given as data to the rows of a forward, on either engine.

An edit is first resolved: at each place, for each prompt, what becomes of which positions. The
rows of all prompts of a forward are then edited in a few operations, whatever the number of
prompts.
"""
