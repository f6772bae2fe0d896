"""Frames of video files at any position: where their packets lie, and how they are decoded. Needs PyAV."""
