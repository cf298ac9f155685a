"""What this package relies on of others that they do not promise, and the check that it is there.

Each of `nnsight`, `vllm`, `torch` and `transformers` here is a table of names of the package it is
called after. `installed` checks them over what is installed; ``python -m nnterp.foreign vllm PATH``
over any unpacked release."""
