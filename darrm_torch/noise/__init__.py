"""The optimal probability of reporting the majority."""
