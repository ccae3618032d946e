#!/usr/bin/env bash
# A column of the paper's Table 2, and Table 3: three alphas, three seeds, for a direction (de-en, en-de, ja-en,
# en-ja, ro-en, en-ro). The same command again goes on where it was. Options, clusters, GPUs: docs/reproducing.md, or --help.
#
#   bash scripts/download_iwslt17.sh
#   bash scripts/reproduce_translation.sh de-en [--dry-run] [--pairs 1/1 1.5/1.5] [--seeds 1]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/workflow/front.sh" translation "$@"
