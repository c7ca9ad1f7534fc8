"""Ready-made pipelines: one YAML file each, and the functions that only that pipeline hosts."""
