#!/usr/bin/env bash
# The paper's Fig. 4: validation accuracy with the attention's alpha and the output's alpha varied in turn, the other at
# 1.5. The same command again goes on where it was. Options, clusters, GPUs: docs/reproducing.md, or --help.
#
#   bash scripts/download_iwslt17.sh
#   bash scripts/alpha_grid.sh de-en [--dry-run] [--alphas 1 1.25 1.5 1.75 2 2.25]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/workflow/front.sh" alpha-grid "$@"
