"""Registers the plugin the moment ``import onmt`` has run, in every process of this Python.

A one-line ``onmt_entmax.pth`` in site-packages imports this module at every start of Python, so it imports nothing that
the interpreter has not loaded anyway. It puts a finder in place that serves the single module ``onmt``: it lets that be
imported where packages that few need are missing (:mod:`onmt_entmax.plugin.standins`), and registers the plugin when it
has run; with ``ONMT_ENTMAX_DISABLE=1`` it does not.
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
        spec = ordinary_spec(RegisteringFinder, name, path, target)
        if spec is not None:
            _extend(spec.loader)
        return spec


def ordinary_spec(ours, name, path, target):
    """Return what the finders other than ``ours`` find."""
    for finder in sys.meta_path:
        if finder is not ours and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


def _extend(loader):
    exec_module = getattr(loader, "exec_module", None)
    if exec_module is None:
        return

    def exec_and_register(module):
        from onmt_entmax.plugin import standins

        standins.prepare()
        if os.environ.get("ONMT_ENTMAX_DISABLE") == "1":
            exec_module(module)
            return
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


def install() -> None:
    """Put the finder first on ``sys.meta_path``, once."""
    if RegisteringFinder not in sys.meta_path:
        sys.meta_path.insert(0, RegisteringFinder)


install()
