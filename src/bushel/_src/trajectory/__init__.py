"""Robot trajectories: episodes as tables, training samples as windows of them, and CrossFormer's pipeline on top."""
