"""What a stage runs: one adapter for each engine, behind the port `podium.ports.stage_backend`."""
