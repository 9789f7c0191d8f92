"""Private selection: candidates compute Delta_n together, and the server learns only the scores.

docs/privacy-protocol.md is the specification; the modules follow its sections.
"""
