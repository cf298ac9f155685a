"""The ``nnterp`` command and what it runs."""
