# What the scripts that run a grid share: finds the Python that has onmt_entmax, and runs the grid with the arguments given.
WORKFLOW=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHON=${ONMT_ENTMAX_VENV:-$WORKFLOW/../../.venv}/bin/python
case "$PYTHON" in /*) ;; *) PYTHON=$PWD/$PYTHON ;; esac
[ -x "$PYTHON" ] || PYTHON=python3
if ! (cd / && "$PYTHON" -c 'import onmt_entmax' 2>/dev/null); then
  echo "$(basename "$0"): onmt_entmax is not installed for $PYTHON. Run: bash scripts/install.sh" >&2
  exit 2
fi
exec "$PYTHON" "$WORKFLOW/grid.py" "$@"
