#!/usr/bin/env bash
# The paper's Table 1 and its sparsity figures for a setting: nine (output, attention) pairs of alphas, three seeds,
# ensembles. The same command again goes on where it was. Options, clusters, GPUs: docs/reproducing.md, or --help.
#
#   bash scripts/download_conll2018.sh
#   bash scripts/reproduce_inflection.sh medium [--dry-run] [--pairs 1/1 1.5/1.5] [--seeds 1] [--languages ...]
#     [--ensembles 1/1,1.5/1.5]   mixed ensembles: the best on dev is tested
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/workflow/front.sh" inflection "$@"
