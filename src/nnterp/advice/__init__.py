"""What is known of checkpoints and engines beforehand, and said at the load."""
