"""Registers the plugin the moment ``import onmt`` has run, in every process of this Python.

A one-line ``onmt_entmax.pth`` in site-packages imports this module at every start of Python, so it imports nothing that
the interpreter has not loaded anyway. It puts a finder in place that serves the single module ``onmt``; setting
``ONMT_ENTMAX_DISABLE=1`` leaves OpenNMT-py as it is.
"""

import os
import sys
import warnings


class RegisteringFinder:
    """Finds ``onmt`` as usual, and has the plugin registered when that module has been executed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        """Return the ordinary spec of ``onmt`` with its loader's ``exec_module`` extended; None for other modules."""
        if name != "onmt":
            return None
        for finder in sys.meta_path:
            if finder is RegisteringFinder or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    _extend(spec.loader)
                return spec
        return None


def _extend(loader):
    exec_module = loader.exec_module

    def exec_and_register(module):
        # stock code says these on torch 2.4 and newer, at import and once per run; the functions do what they should
        warnings.filterwarnings("ignore", message=r"`torch\.cuda\.amp\.", category=FutureWarning)
        warnings.filterwarnings("ignore", message="dropout option adds dropout", category=UserWarning)  # 1-layer LSTMs
        exec_module(module)
        try:
            import onmt_entmax

            onmt_entmax.register()
        except Exception as error:  # stock code would decode an entmax checkpoint with softmax and say nothing
            print(f"onmt_entmax: registration failed: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(2) from error

    loader.exec_module = exec_and_register


def install():
    """Put the finder first on ``sys.meta_path``, once."""
    if os.environ.get("ONMT_ENTMAX_DISABLE") == "1":
        return
    if RegisteringFinder not in sys.meta_path:
        sys.meta_path.insert(0, RegisteringFinder)


install()
