"""Keeps what is known beforehand to be wrong or untested, so that a load can warn of it."""
