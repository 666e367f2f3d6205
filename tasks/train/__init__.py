"""Training: Ray Train workers that each run a transformers Trainer, resumable at any instant."""
