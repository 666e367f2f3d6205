"""What each stage does: plain, typed, testable without Prefect."""
