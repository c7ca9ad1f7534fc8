"""Every interleaving of events on the real core, for small worlds, with each state judged from outside.

Nothing is imported here. `search.explore` explores one world, `worlds.WORLDS` are those that are shipped.
"""
