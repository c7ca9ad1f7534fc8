"""Measures the orchestrator beside the bare floor: `python -m bench`. Nothing of it is shipped."""
