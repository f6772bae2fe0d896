"""What every layer needs: errors, trees, blocks, options, transforms, generators. Knows nothing of pipelines."""
