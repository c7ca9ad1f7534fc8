"""The shell around the core: the loop and its thread, the life of replicas, and what callers hold."""
