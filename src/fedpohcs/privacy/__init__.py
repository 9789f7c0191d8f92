"""Private selection: candidates compute Delta_n together, and the server learns only the scores.

docs/privacy.md is the specification; the modules follow its sections.
"""
