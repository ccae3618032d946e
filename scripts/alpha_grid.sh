#!/usr/bin/env bash
# The paper's Fig. 4: validation accuracy with the attention's alpha and the output's alpha varied in turn, the other at
# 1.5. The same command again goes on where it was. Options, clusters, GPUs: docs/reproducing.md, or --help.
#
#   bash scripts/download_iwslt17.sh
#   bash scripts/alpha_grid.sh de-en [--dry-run] [--alphas 1 1.25 1.5 1.75 2 2.25]
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${ONMT_ENTMAX_VENV:-$HERE/../.venv}/bin/python
[ -x "$PYTHON" ] || PYTHON=python3
if ! (cd / && "$PYTHON" -c 'import onmt_entmax' 2>/dev/null); then
  echo "$(basename "$0"): onmt_entmax is not installed for $PYTHON. Run: bash scripts/install.sh" >&2
  exit 2
fi
exec "$PYTHON" "$HERE/workflow/grid.py" alpha-grid "$@"
