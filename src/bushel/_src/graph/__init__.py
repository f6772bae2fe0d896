"""What a pipeline means: nodes. A map node is a function of an index, a stream node has cursors. No threads here."""
