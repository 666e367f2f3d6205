"""What an experiment is: pydantic models, loading, presets. Imports nothing of ours."""
