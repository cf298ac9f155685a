"""The vocabulary as data: values, their names as text, and what a checkpoint serves of them."""
