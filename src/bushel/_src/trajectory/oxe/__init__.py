"""Open X-Embodiment: the data sets and mixtures of Octo, CrossFormer, OpenVLA and X-Gym, as data."""
