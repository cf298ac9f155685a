"""Gathers a few values of many prompts, on either engine.

A trace runs a block of code for each prompt. That is more than is needed to keep a value or two
of each of thousands: here the values are named beforehand, and taken for all the prompts of a
forward at once.
"""
