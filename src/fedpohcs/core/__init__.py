"""What every other package builds on: types, configs, errors, registries. Imports nothing above itself."""
