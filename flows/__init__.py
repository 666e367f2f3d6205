"""How stages are wired: the Prefect flow and the command line."""
