"""The only folder that touches OpenNMT-py's internals."""
