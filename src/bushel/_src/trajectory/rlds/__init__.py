"""RLDS data sets, the form in which TFDS keeps robot episodes: read and written without TensorFlow."""
