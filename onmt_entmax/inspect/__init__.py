"""The server side of ``onmt_entmax inspect``: a page on which a model is tried; also the simulated translator."""
