"""A real federation over Flower: server, clients, keys, secure sums."""
