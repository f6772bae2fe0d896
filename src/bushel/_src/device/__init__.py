"""Elements on accelerators: put there ahead of the step that needs them, and random keys that belong to them."""
