"""The stock commands' entry points: a user's mistake ends them with one line and exit status 2."""

from __future__ import annotations

from onmt_entmax.plugin.hooks import one_line_errors, replace


def _terminate(stock):
    def terminate(self):
        stock(self)
        translator = getattr(self, "translator", None)
        if translator is not None and translator.out_file is not None:
            translator.out_file.close()  # stock leaves that to the garbage collector

    return terminate


def install() -> None:
    """Wrap what ``onmt_train`` and ``onmt_translate`` call after their options are read."""
    import onmt.inference_engine
    import onmt.train_single
    from onmt.inference_engine import InferenceEnginePY

    replace(onmt.train_single, "main", one_line_errors)
    for method in ("__init__", "_translate"):
        replace(InferenceEnginePY, method, one_line_errors)
    replace(InferenceEnginePY, "terminate", _terminate)
