"""The protocols between the core and the world: where a stage runs, what it runs, and what both may rely on.

Ports hold types only. Adapters (`transports/`, `backends/`, `processors/`) implement them and never import each other.
"""
