"""Describes the vocabulary as data: values, their names, and what a checkpoint serves of them."""
