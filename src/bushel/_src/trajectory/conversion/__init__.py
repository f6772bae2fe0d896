"""Data sets of episodes into another format: RLDS, or LeRobot v3 with its videos."""
