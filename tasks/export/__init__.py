"""Weights → a Hugging Face folder, proven by loading it again."""
