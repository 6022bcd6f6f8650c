#!/usr/bin/env bash
# Tries the served description with a generator of tests that nobody here wrote: schemathesis, of the Python registry.
#   python3 -m venv VENV && VENV/bin/pip install schemathesis
#   SCHEMATHESIS=VENV/bin/st tests/http/api-fuzz.sh [EXAMPLES]
# Ends with 0 where every answer is one that the description has. Takes a minute; a server of its own, a port of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
tool=${SCHEMATHESIS:-st}
command -v "$tool" >/dev/null || { echo "schemathesis is not here: see the head of $0" >&2; exit 2; }
bin=${REPRISE_BIN:-target/release/reprise}
modules=${REPRISE_MODULES:-target/procedures}
dir=$(mktemp -d)
tool=$(realpath "$(command -v "$tool")")
: >"$dir/out" # it is read before the server's shell may have made it
"$bin" serve --data-dir "$dir/data" --listen 127.0.0.1:0 --partitions 2 >"$dir/out" 2>"$dir/err" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -rf "$dir"' EXIT
url=
for _ in $(seq 600); do
  url=$(sed -n 's/^listening on //p' "$dir/out")
  [ -n "$url" ] && curl -sf "${url%/}/readyz" >/dev/null && break
  kill -0 $server || { cat "$dir/err" >&2; exit 1; }
  sleep 0.1
done
url=${url%/}
for module in voter bank; do
  curl -sf -X PUT --data-binary "@$modules/$module.wasm" "$url/v1/modules/$module" >/dev/null
done
curl -sf "$url/v1/call/bank/open" --json '{"account": 1, "balance": 100}' >/dev/null
# An event stream has no end, and a download is no document.
export SCHEMATHESIS_HOOKS="$PWD/tests/http/api-fuzz-hooks.py"
cd "$dir" # what it notes for itself goes with the rest
"$tool" --config-file "$OLDPWD/tests/http/api-fuzz.toml" run "$url/openapi.json" --max-examples "${1:-10}" --workers 1 --phases examples,coverage,fuzzing \
  --exclude-path /v1/events --exclude-path '/v1/backups/{id}/files/{name}' --request-timeout 90 --no-color \
  --suppress-health-check all
