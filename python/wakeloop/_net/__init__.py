"""The parts of connections: sockets, pipes, TLS, streams, and files that are sent."""
