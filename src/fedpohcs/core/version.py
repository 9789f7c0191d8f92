"""The version of the package, which runs store and fleets compare."""

__version__ = "0.2.0"
