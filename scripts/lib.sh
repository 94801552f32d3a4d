# Sourced by the other scripts: goes to the root of the clone and finds the environment to work in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The active virtual environment, else the clone's own .venv.
if [[ -n "${VIRTUAL_ENV:-}" ]]; then
  python="$VIRTUAL_ENV/bin/python"
else
  python="$PWD/.venv/bin/python"
fi

need_environment() {
  if [[ ! -x "$python" ]]; then
    echo "no virtual environment is active and there is no .venv here; run scripts/setup first" >&2
    exit 1
  fi
}
