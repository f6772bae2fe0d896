"""A page in the browser that shows what a pipeline reads: `bushel.view(ds)`, and the command `bushel view`."""
