"""Publishes every line of a file through the unmodified official client and prints what it was told.

    publish_webhooks.py ENDPOINT TABLE FILE [PAUSE_FILE]

The client recovers from a lost connection by itself; with PAUSE_FILE half of the records are sent and acknowledged,
then the file is awaited before the rest, so that a test can cut the connection at a known point in between.
"""

import json
import os
import sys
import time

import script
from zerobus.sdk.shared import HeadersProvider, RecordType, StreamConfigurationOptions, TableProperties
from zerobus.sdk.sync import ZerobusSdk


class Anonymous(HeadersProvider):
    """The two headers that the wire asks for; a loopback server without tokens takes any bearer."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def get_headers(self):
        return [("authorization", "Bearer anonymous"), ("x-databricks-zerobus-table-name", self.table)]


def wait_for(path, seconds):
    deadline = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > deadline:
            sys.exit(f"{path} did not appear within {seconds} s")
        time.sleep(0.02)


def main():
    endpoint, table, file = sys.argv[1:4]
    pause_file = sys.argv[4] if len(sys.argv) > 4 else None
    with open(file, encoding="utf-8", newline="\n") as lines:
        records = [line.removesuffix("\n") for line in lines]
    options = StreamConfigurationOptions(record_type=RecordType.JSON, recovery=True, recovery_backoff_ms=200)
    sdk = ZerobusSdk(endpoint, endpoint)
    stream = sdk.create_stream(table_properties=TableProperties(table), options=options, headers_provider=Anonymous(table))
    half = len(records) // 2 if pause_file else len(records)
    last = -1
    for record in records[:half]:
        last = stream.ingest_record_offset(record)
    if pause_file:
        stream.wait_for_offset(last)
        print(json.dumps({"acknowledged": half}), flush=True)
        wait_for(pause_file, 60)
        # Batches and single records go over the same stream.
        last = stream.ingest_records_offset(records[half : half + 10])
        for record in records[half + 10 :]:
            last = stream.ingest_record_offset(record)
    stream.wait_for_offset(last)
    stream.flush()
    stream.close()
    print(json.dumps({"records": len(records), "unacked": len(list(stream.get_unacked_records()))}), flush=True)


if __name__ == "__main__":
    script.run(main)
