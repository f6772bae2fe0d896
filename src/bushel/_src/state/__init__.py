"""How a pipeline resumes: what identifies it, and the envelope around an iterator's state. Plain data, no engine."""
