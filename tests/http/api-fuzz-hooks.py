"""How schemathesis sends bodies that are no JSON document: modules, lines of JSON, sequences of CBOR."""

import json

import schemathesis


@schemathesis.serializer("application/wasm")
def wasm(ctx, value):
    return value if isinstance(value, bytes) else str(value).encode()


@schemathesis.serializer("application/x-ndjson")
def lines(ctx, value):
    return json.dumps(value).encode() + b"\n"


@schemathesis.serializer("application/cbor-seq")
def items(ctx, value):
    return b"\xa0"  # an empty map: no call, and no mistake of the sequence


@schemathesis.serializer("application/cbor")
def document(ctx, value):
    return b"\xa0"
