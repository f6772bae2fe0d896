"""LeRobot data sets (v2.0, v2.1 and v3.0) without lerobot and torch: Parquet rows with videos or images beside them."""
