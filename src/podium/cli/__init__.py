"""The command line: one file per verb, over the same public API that anybody has. It decides nothing about requests."""
