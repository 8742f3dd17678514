"""Experiments around the package: the paper's results, other pictures, speed, and hostile input."""
