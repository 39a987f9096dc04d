"""The modules of `scripts/bench`."""
