#!/bin/sh
# Starts the server in the foreground with the sample modules deployed. Ctrl-C ends it.
set -eu

reprise=target/release/reprise
listen=${LISTEN:-127.0.0.1:8080}
data=${DATA_DIR:-./reprise-data}
REPRISE_URL=http://$listen
export REPRISE_URL

"$reprise" serve --data-dir "$data" --listen "$listen" &
server=$!
trap 'kill -TERM "$server" 2>/dev/null || true' INT TERM

# Ready when it answers; the server may first have a log to replay.
until "$reprise" module list >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || { wait "$server"; exit 1; }
    sleep 0.2
done
for module in voter bank tpcc tickets; do
    "$reprise" module deploy "target/procedures/$module.wasm" --name "$module" >/dev/null
done

cat <<EOT

Reprise serves $REPRISE_URL with the modules voter, bank, tpcc and tickets deployed. Data lies in $data. Ctrl-C ends it.

Try in another terminal:
  curl $REPRISE_URL/v1/call/bank/open --json '{"account": 1, "balance": 100}'
  curl $REPRISE_URL/v1/call/bank/open --json '{"account": 2, "balance": 0}'
  curl $REPRISE_URL/v1/call/bank/transfer --json '{"from": 1, "to": 2, "amount": 30}'
  $reprise call bank.total
  $reprise log tail

The console is at $REPRISE_URL/console/, the API at $REPRISE_URL/docs.
Write a module of your own with: $reprise new my-module
EOT

# A signal interrupts the first wait; the second one takes the server's own end.
wait "$server" || wait "$server"
