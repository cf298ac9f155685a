"""Defines sites: at which location, and in what form, an architecture keeps a value.

`primitive` has sites for values as modules pass them, `fused` for residual streams passed as two
addends, and `source` for values inside a module's forward. `mapped`, `choice` and `two_part`
build sites out of other sites, and `routing` has sites for the routing of a mixture of experts.
"""
