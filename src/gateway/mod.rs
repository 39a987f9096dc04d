//! The sans-I/O core: where HTTP, the dialects and the policy meet.
