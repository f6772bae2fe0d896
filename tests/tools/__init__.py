"""Programs that make and people run: none of them is imported by a test of the library."""
