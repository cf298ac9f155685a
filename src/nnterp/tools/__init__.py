"""Holds the ``nnterp`` command and what it runs."""
