"""What several tests share, one module for each idea: `from helpers.waiting import wait_until`."""
