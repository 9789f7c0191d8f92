"""A run from its first round to its stored policy: folder, checkpoints, export, play."""
