#!/bin/sh
# Starts the server in the foreground with the sample modules deployed. Ctrl-C ends it.
set -eu

reprise=${REPRISE:-target/release/reprise}
listen=${LISTEN:-127.0.0.1:8080}
data=${DATA_DIR:-./reprise-data}
server=
said=

stop() { [ -z "$server" ] || kill -TERM "$server" 2>/dev/null || true; }
trap 'stop; wait; rm -f "$said"' EXIT

fail() {
    echo "$1" >&2
    exit 1
}

# Ends if something takes connections at the address. The modules would else go into another server.
is_free() {
    code=0
    curl --silent --output /dev/null --max-time 2 --noproxy '*' --globoff "http://$listen/" 2>/dev/null || code=$?
    case $code in
    # No connection: a bad address, an unknown host, refused, too late, or no curl. The server says the rest.
    3 | 6 | 7 | 28 | 127) ;;
    *) fail "$listen is in use: stop the server there, or choose another address with LISTEN=ADDR:PORT. Nothing was started or deployed." ;;
    esac
}

# Ends with the server.
check_server() {
    kill -0 "$server" 2>/dev/null && return
    fail "the server ended, and its reason is above. If $listen is in use, stop the server there, or choose another address with LISTEN=ADDR:PORT."
}

is_free
said=$(mktemp)
"$reprise" serve --data-dir "$data" --listen "$listen" >"$said" &
server=$!
trap stop INT TERM

# The server writes its URL once it has the address. No other server can write this line.
url=
until [ -n "$url" ]; do
    sleep 0.1
    check_server
    url=$(sed -n 's/^listening on //p' "$said")
done
REPRISE_URL=$url
export REPRISE_URL

# Ready when it answers; the server may first have a log to replay.
until refusal=$("$reprise" module list 2>&1 >/dev/null); do
    check_server
    case $refusal in
    *'recovering (503)'*) ;;
    *)
        echo "$refusal" >&2
        fail "the sample modules can't be deployed to $url. If $data/reprise.toml has tokens or TLS, set REPRISE_TOKEN to a token of the role admin, and REPRISE_CA_CERT to the certificate; or choose an empty directory with DATA_DIR=DIR."
        ;;
    esac
    sleep 0.2
done
for module in voter bank tpcc tickets; do
    check_server
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
