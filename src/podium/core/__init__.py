"""The pure core: told what happened, it answers with what to do.

Nothing here waits, reads a clock, starts a thread or logs; the same events at the same times give the same effects.
"""
