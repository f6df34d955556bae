"""Servers as targets: a keep-alive client on one thread, and servers that the harness starts and stops."""
