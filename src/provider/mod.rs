//! The simulated provider: a second sans-I/O core on the same reactor.
