#!/bin/sh
# Starts a primary and two standbys on this machine, in the foreground, with the sample modules deployed. Ctrl-C ends all.
set -eu

reprise=${REPRISE:-target/release/reprise}
port=${PORT:-8080}
ship=$((port + 100))
second=$((port + 1))
third=$((port + 2))
primary=http://127.0.0.1:$port
servers=

stop() {
    for server in $servers; do kill -TERM "$server" 2>/dev/null || true; done
}
trap stop INT TERM EXIT

start() {
    name=$1
    shift
    mkdir -p "$data"
    "$reprise" serve --name "$name" --data-dir "$data/$name" --safety quorum "$@" >"$data/$name.log" 2>&1 &
    server=$!
    servers="$servers $server"
}

# is_free PORT...: ends with a line where something takes connections there.
is_free() {
    for taken in "$@"; do
        # 7: refused. Whatever else comes of it, a server is there.
        code=0
        curl --silent --output /dev/null --max-time 2 --noproxy '*' "http://127.0.0.1:$taken/" 2>/dev/null || code=$?
        case $code in
        7 | 127) ;;
        *)
            echo "port $taken is taken: stop the server there, or choose others with PORT=N (N to N+2 and N+100 to N+102)." >&2
            exit 1
            ;;
        esac
    done
}

# answers URL: waits until a server is ready, or has ended.
answers() {
    until "$reprise" module list --url "$1" >/dev/null 2>&1; do
        kill -0 "$server" 2>/dev/null || { tail -n 5 "$data/$name.log" >&2; exit 1; }
        sleep 0.2
    done
}

is_free "$port" "$second" "$third" "$ship" $((ship + 1)) $((ship + 2))
data=${DATA_DIR:-$(mktemp -d)}
start a --listen 127.0.0.1:"$port" --ship-listen 127.0.0.1:"$ship" --advertise "$primary"
answers "$primary"
start b --listen 127.0.0.1:"$second" --standby-of "$primary" \
    --ship-listen 127.0.0.1:$((ship + 1)) --advertise "http://127.0.0.1:$second"
answers "http://127.0.0.1:$second"
start c --listen 127.0.0.1:"$third" --standby-of "$primary" \
    --ship-listen 127.0.0.1:$((ship + 2)) --advertise "http://127.0.0.1:$third"
answers "http://127.0.0.1:$third"
# A write is answered once one of both standbys has it, too.
in_sync() { "$reprise" replication status --url "$primary" --output json | grep -c '"in_sync": *true'; }
until [ "$(in_sync)" -ge 2 ]; do sleep 0.2; done
for module in voter bank tpcc tickets; do
    "$reprise" module deploy "target/procedures/$module.wasm" --name "$module" --url "$primary" >/dev/null
done

cat <<EOT

A primary serves $primary, standbys http://127.0.0.1:$second and http://127.0.0.1:$third. Data and output lie in $data. Ctrl-C ends all.

Try in another terminal:
  curl $primary/v1/call/bank/open --json '{"account": 1, "balance": 100}'
  curl -i http://127.0.0.1:$second/v1/call/bank/balance --json '{"account": 1}'    # a standby answers, and says how old it is
  curl http://127.0.0.1:$second/v1/call/bank/open --json '{"account": 2, "balance": 0}'    # and refuses what writes
  $reprise replication status --url $primary
Kill the primary, and make a standby take over. It asks the other one, so that nothing is lost; if that one has more, promote that one:
  kill -9 $(echo "$servers" | awk '{ print $1 }')
  $reprise replication promote --force --url http://127.0.0.1:$second
The other standby follows the new primary by itself:
  $reprise replication status --url http://127.0.0.1:$second
  curl http://127.0.0.1:$second/v1/call/bank/open --json '{"account": 3, "balance": 5}'
Start the old primary again, as a standby:
  $reprise serve --name a --data-dir $data/a --listen 127.0.0.1:$port --safety quorum --standby-of http://127.0.0.1:$second \\
    --ship-listen 127.0.0.1:$ship --advertise $primary

The consoles are at $primary/console/#/replication and http://127.0.0.1:$second/console/#/replication.
EOT

wait
