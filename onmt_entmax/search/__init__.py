"""Search over any step-wise scorer: beam, exact, sampling, forced scoring, with certificates of what was ruled out.

Imports torch and nothing of OpenNMT-py; a model is connected through :class:`~onmt_entmax.search.scorer.Scorer`.
"""

from __future__ import annotations
