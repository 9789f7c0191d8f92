"""Private selection: candidates compute Delta_n together, and the server learns nothing but the scores.

docs/privacy.md is the specification; the modules follow its sections.
"""
