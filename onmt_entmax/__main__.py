"""``python -m onmt_entmax``: the same as the command ``onmt_entmax``."""

import sys

from onmt_entmax.cli import main

sys.exit(main())
