"""Weights and held-out rows → scores of base and trained model."""
