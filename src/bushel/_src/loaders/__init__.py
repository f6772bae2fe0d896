"""Iterators for whole training programs: the DataLoader, hosts that come and go, Orbax checkpoints."""
