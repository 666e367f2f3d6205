"""What an experiment is: section models, loading and checking. Imports nothing else of ours."""
