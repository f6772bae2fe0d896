"""Datasets: what a user builds and iterates, and what can be done with them."""
