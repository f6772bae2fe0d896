"""Elements as people can look at them: a description that the viewer's page draws, and HTML for notebooks."""
