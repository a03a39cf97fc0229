"""A package, so that the topology that its tests share ends with it, not with the session."""
