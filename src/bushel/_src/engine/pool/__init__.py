"""What pools of worker processes and pools of actors share: jobs, deaths, and what travels to workers and back."""
