"""What connections are made of: sockets, pipes, TLS, streams, and files that are sent."""
