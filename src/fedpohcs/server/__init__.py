"""One federated round on the server: selection, aggregation, server optimisers, defences, checks of replies."""
