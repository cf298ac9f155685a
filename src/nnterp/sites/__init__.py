"""The ways a value can be kept: at which location, and in what form.

`primitive` has values as modules pass them, `fused` streams in two addends, `source` values
inside a module's forward; `mapped`, `choice` and `two_part` make sites of other sites, and
`routing` has a mixture's choice of experts.
"""
