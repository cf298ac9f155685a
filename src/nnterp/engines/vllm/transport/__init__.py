"""Defines what passes between the client's process and the worker's, and how.

Both sides import this package, and it imports neither.
"""
