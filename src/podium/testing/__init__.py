"""For tests of podium and of what others build on it: fakes, a virtual clock, and suites that adapters have to pass.

Nothing is imported here: the suites need pytest, the fakes do not.
"""
