"""Worker processes of this machine as an executor: what `mp_prefetch` asks for."""
